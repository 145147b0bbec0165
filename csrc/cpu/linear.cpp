// Checks and binding of linear.
#include "cpu/linear.h"

#include "cpu/packed_arg.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

void linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> scales, int64_t cols,
            int64_t depth, Optional<TensorView> bias) {
  LinearParams params{};
  params.format = packed_arg(weight, cols, depth);
  params.scales = scales_arg(scales, params.format, cols);
  const DType dtype = activation_of(params.format);
  cpu_arg(x, "x").rank(2).size(1, depth).rows_contiguous().activation(dtype);
  params.rows = x.size(0);
  params.cols = cols;
  params.depth = depth;
  params.out_dtype =
      cpu_arg(out, "out").rank(2).size(0, params.rows).size(1, cols).rows_contiguous().activation();
  if (params.out_dtype != DType::kFloat32 && params.out_dtype != dtype) {
    TVM_FFI_THROW(TypeError) << "out: expected the dtype of x or float32";
  }
  if (bias.has_value()) {
    const TensorView view = *bias;
    params.bias =
        cpu_arg(view, "bias").activation(dtype).rank(1).size(0, cols).rows_contiguous().data<void>();
  }
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.weight = weight.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  SPLITSERVE_RUN_KERNEL(linear, params);
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, splitserve::linear);
