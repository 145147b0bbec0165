// Checks and binding of rms_norm, layer_norm and their fused residual forms.
#include "cpu/norm.h"

#include "common/check.h"

namespace splitserve {
namespace {

NormRows rows_of(const TensorView& tensor, const char* name, const TensorView& x, DType dtype) {
  const Arg arg = cpu_arg(tensor, name).activation(dtype).rank(x.ndim()).rows_contiguous();
  for (int dim = 0; dim < x.ndim(); ++dim) arg.size(dim, x.size(dim));
  return {tensor.data_ptr(), tensor.stride(0), x.ndim() == 3 ? tensor.stride(1) : 0};
}

NormParams make_params(const TensorView& out, const TensorView& x, const TensorView& weight, double eps) {
  SPLITSERVE_CHECK_VALUE(x.ndim() == 2 || x.ndim() == 3, "x: expected 2 or 3 dimensions, got " << x.ndim());
  const DType dtype = cpu_arg(x, "x").activation();
  const int64_t hidden = x.size(-1);
  NormParams params{};
  params.out = rows_of(out, "out", x, dtype);
  params.x = rows_of(x, "x", x, dtype);
  params.weight =
      cpu_arg(weight, "weight").activation(dtype).rank(1).size(0, hidden).rows_contiguous().data<void>();
  params.outer = x.size(0);
  params.inner = x.ndim() == 3 ? x.size(1) : 1;
  params.hidden = hidden;
  params.eps = static_cast<float>(eps);
  params.dtype = dtype;
  return params;
}

void set_bias(NormParams* params, const TensorView& bias) {
  params->bias = cpu_arg(bias, "bias")
                     .activation(params->dtype)
                     .rank(1)
                     .size(0, params->hidden)
                     .rows_contiguous()
                     .data<void>();
}

void rms_norm(TensorView out, TensorView x, TensorView weight, double eps) {
  const NormParams params = make_params(out, x, weight, eps);
  SPLITSERVE_CALL_VECTOR(rms_norm, params);
}

void fused_add_rms_norm(TensorView out, TensorView x, TensorView residual, TensorView weight, double eps) {
  NormParams params = make_params(out, x, weight, eps);
  params.residual = rows_of(residual, "residual", x, params.dtype);
  SPLITSERVE_CALL_VECTOR(rms_norm, params);
}

void layer_norm(TensorView out, TensorView x, TensorView weight, TensorView bias, double eps) {
  NormParams params = make_params(out, x, weight, eps);
  set_bias(&params, bias);
  SPLITSERVE_CALL_VECTOR(layer_norm, params);
}

void fused_add_layer_norm(TensorView out, TensorView x, TensorView residual, TensorView weight,
                          TensorView bias, double eps) {
  NormParams params = make_params(out, x, weight, eps);
  params.residual = rows_of(residual, "residual", x, params.dtype);
  set_bias(&params, bias);
  SPLITSERVE_CALL_VECTOR(layer_norm, params);
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, splitserve::rms_norm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fused_add_rms_norm, splitserve::fused_add_rms_norm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(layer_norm, splitserve::layer_norm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fused_add_layer_norm, splitserve::fused_add_layer_norm);
