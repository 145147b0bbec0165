// Checks and binding of rms_norm, layer_norm and their fused residual forms.
#include "common/norm.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

NormRows norm_rows(const DeviceArgs& args, const TensorView& tensor, const char* name, const TensorView& x,
                   DType dtype) {
  args(tensor, name).activation(dtype).rank(2).size(0, x.size(0)).size(1, x.size(1)).rows_contiguous();
  return {tensor.data_ptr(), tensor.stride(0)};
}

NormParams make_params(const DeviceArgs& args, const TensorView& out, const TensorView& x,
                       const TensorView& weight, double eps) {
  const DType dtype = args(x, "x").rank(2).activation();
  const int64_t hidden = x.size(1);
  SPLITSERVE_CHECK_VALUE(hidden * dtype_bytes(dtype) <= kMaxNormBytes, "x: a last dimension of "
                                                                           << hidden << " takes more than "
                                                                           << kMaxNormBytes << " bytes");
  NormParams params{};
  params.out = norm_rows(args, out, "out", x, dtype);
  params.x = norm_rows(args, x, "x", x, dtype);
  params.weight =
      args(weight, "weight").activation(dtype).rank(1).size(0, hidden).rows_contiguous().data<void>();
  params.rows = x.size(0);
  params.hidden = hidden;
  params.eps = static_cast<float>(eps);
  params.dtype = dtype;
  return params;
}

void set_bias(const DeviceArgs& args, NormParams* params, const TensorView& bias) {
  params->bias = args(bias, "bias")
                     .activation(params->dtype)
                     .rank(1)
                     .size(0, params->hidden)
                     .rows_contiguous()
                     .data<void>();
}

void rms_norm(TensorView out, TensorView x, TensorView weight, double eps, double offset) {
  const DeviceArgs args(x, "x");
  NormParams params = make_params(args, out, x, weight, eps);
  params.offset = static_cast<float>(offset);
  SPLITSERVE_RUN(rms_norm, params, args.device());
}

void fused_add_rms_norm(TensorView out, TensorView x, TensorView residual, TensorView weight, double eps,
                        double offset) {
  const DeviceArgs args(x, "x");
  NormParams params = make_params(args, out, x, weight, eps);
  params.offset = static_cast<float>(offset);
  params.residual = norm_rows(args, residual, "residual", x, params.dtype);
  SPLITSERVE_RUN(rms_norm, params, args.device());
}

void layer_norm(TensorView out, TensorView x, TensorView weight, TensorView bias, double eps) {
  const DeviceArgs args(x, "x");
  NormParams params = make_params(args, out, x, weight, eps);
  set_bias(args, &params, bias);
  SPLITSERVE_RUN(layer_norm, params, args.device());
}

void fused_add_layer_norm(TensorView out, TensorView x, TensorView residual, TensorView weight,
                          TensorView bias, double eps) {
  const DeviceArgs args(x, "x");
  NormParams params = make_params(args, out, x, weight, eps);
  params.residual = norm_rows(args, residual, "residual", x, params.dtype);
  set_bias(args, &params, bias);
  SPLITSERVE_RUN(layer_norm, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(rms_norm, splitserve::rms_norm);
SPLITSERVE_EXPORT(fused_add_rms_norm, splitserve::fused_add_rms_norm);
SPLITSERVE_EXPORT(layer_norm, splitserve::layer_norm);
SPLITSERVE_EXPORT(fused_add_layer_norm, splitserve::fused_add_layer_norm);
