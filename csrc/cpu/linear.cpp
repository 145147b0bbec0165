// Checks and binding of linear.
#include "cpu/linear.h"

#include "common/check.h"

namespace splitserve {
namespace {

void linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> bias) {
  LinearParams params{};
  params.dtype = cpu_arg(x, "x").rank(2).rows_contiguous().activation();
  params.rows = x.size(0);
  params.depth = x.size(1);
  cpu_arg(weight, "weight").activation(params.dtype).rank(2).size(1, params.depth).rows_contiguous();
  params.cols = weight.size(0);
  params.out_dtype =
      cpu_arg(out, "out").rank(2).size(0, params.rows).size(1, params.cols).rows_contiguous().activation();
  if (params.out_dtype != DType::kFloat32 && params.out_dtype != params.dtype) {
    TVM_FFI_THROW(TypeError) << "out: expected the dtype of x or float32";
  }
  if (bias.has_value()) {
    const TensorView view = *bias;
    params.bias = cpu_arg(view, "bias")
                      .activation(params.dtype)
                      .rank(1)
                      .size(0, params.cols)
                      .rows_contiguous()
                      .data<void>();
  }
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.weight = weight.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  params.weight_stride = weight.stride(0);
  SPLITSERVE_CALL_MATRIX(linear, params);
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, splitserve::linear);
