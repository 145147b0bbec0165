// Checks and binding of expert_linear.
#include "cuda/expert_linear.h"

#include "common/device_args.h"
#include "common/experts.h"

namespace splitserve {
namespace {

// A matrix of all experts, or its codes of MXFP4 and their scales.
void set_weight(ExpertLinearParams* p, const DeviceArgs& args, const TensorView& weight,
                const Optional<TensorView>& scales) {
  const int64_t cols = p->experts * p->cols;
  p->weight = weight.data_ptr();
  SPLITSERVE_CHECK_VALUE(weight.IsContiguous(), "weight: must be contiguous");
  if (!scales.has_value()) {
    args(weight, "weight").activation(p->dtype).rank(2).size(0, cols).size(1, p->depth);
    return;
  }
  constexpr int64_t kGroup = 32, kCodeBytes = 16;
  const int64_t groups = (p->depth + kGroup - 1) / kGroup;
  if (p->dtype != DType::kBFloat16) TVM_FFI_THROW(TypeError) << "x: expected bfloat16 for codes of MXFP4";
  args(weight, "weight").type({kUInt8Type}).rank(3).size(0, cols).size(1, groups).size(2, kCodeBytes);
  SPLITSERVE_CHECK_VALUE(reinterpret_cast<uintptr_t>(p->weight) % kCodeBytes == 0,
                         "weight: must begin at a multiple of " << kCodeBytes << " bytes");
  const TensorView view = *scales;
  args(view, "scales").type({kUInt8Type}).rank(2).size(0, cols).size(1, groups);
  SPLITSERVE_CHECK_VALUE(view.IsContiguous(), "scales: must be contiguous");
  p->scales = static_cast<const uint8_t*>(view.data_ptr());
}

void expert_linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> scales,
                   TensorView starts, Optional<TensorView> bias) {
  const DeviceArgs args(x, "x");
  ExpertLinearParams params{};
  params.dtype = args(x, "x").rank(2).rows_contiguous().activation();
  params.rows = x.size(0);
  params.depth = x.size(1);
  args(starts, "starts").rank(1);
  params.experts = starts.size(0) - 1;
  SPLITSERVE_CHECK_VALUE(params.experts >= 1 && params.experts <= kMaxExperts,
                         "starts: expected 1 to " << kMaxExperts << " experts, got " << params.experts);
  params.starts = args(starts, "starts").vector(kInt32Type, params.experts + 1).data<const int32_t>();
  params.out_dtype = args(out, "out").rank(2).size(0, params.rows).rows_contiguous().activation();
  if (params.out_dtype != DType::kFloat32 && params.out_dtype != params.dtype) {
    TVM_FFI_THROW(TypeError) << "out: expected the dtype of x or float32";
  }
  params.cols = out.size(1);
  set_weight(&params, args, weight, scales);
  if (bias.has_value()) {
    const TensorView view = *bias;
    params.bias = args(view, "bias")
                      .activation(params.dtype)
                      .rank(1)
                      .size(0, params.experts * params.cols)
                      .rows_contiguous()
                      .data<void>();
  }
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  SPLITSERVE_RUN(expert_linear, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(expert_linear, splitserve::expert_linear);
