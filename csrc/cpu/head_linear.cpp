// Checks and binding of head_linear.
#include "common/experts.h"
#include "cpu/linear.h"
#include "cpu/packed_arg.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

void head_linear(TensorView out, TensorView x, TensorView weight, int64_t cols, int64_t depth) {
  ExpertLinearParams params{};
  LinearParams& p = params.linear;
  cpu_arg(x, "x").rank(3).size(2, depth).rows_contiguous();
  params.experts = x.size(1);
  SPLITSERVE_CHECK_VALUE(params.experts >= 1 && params.experts <= kMaxExperts,
                         "x: expected 1 to " << kMaxExperts << " heads, got " << params.experts);
  p.format = packed_arg(weight, cols, depth, params.experts);
  const DType dtype = activation_of(p.format);
  if (p.format != WeightFormat::kFloat32 && p.format != WeightFormat::kBFloat16) {
    TVM_FFI_THROW(TypeError) << "weight: expected float32 or bfloat16";
  }
  cpu_arg(x, "x").activation(dtype);
  cpu_arg(out, "out").rank(3).size(0, x.size(0)).size(1, params.experts).size(2, cols).rows_contiguous();
  cpu_arg(out, "out").activation(dtype);
  p.out = out.data_ptr();
  p.x = x.data_ptr();
  p.weight = weight.data_ptr();
  p.out_stride = out.stride(0);
  p.x_stride = x.stride(0);
  p.rows = x.size(0);
  p.cols = cols;
  p.depth = depth;
  p.out_dtype = dtype;
  params.x_expert_stride = x.stride(1);
  params.out_expert_stride = out.stride(1);
  SPLITSERVE_RUN_KERNEL(expert_linear, params);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(head_linear, splitserve::head_linear);
