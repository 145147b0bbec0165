// Checks and binding of silu_and_mul, gelu_and_mul, gelu, add, scale and soft_cap.
#include "common/activation.h"

#include <string_view>

#include "common/device_args.h"

namespace splitserve {
namespace {

ActivationParams make_params(const DeviceArgs& args, const TensorView& out, const TensorView& x, int64_t size,
                             Activation kind) {
  ActivationParams params{};
  params.dtype = args(x, "x").rank(2).rows_contiguous().activation();
  params.tokens = x.size(0);
  params.size = size;
  args(out, "out").activation(params.dtype).rank(2).size(0, params.tokens).size(1, size).rows_contiguous();
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  params.kind = kind;
  return params;
}

void run(const TensorView& out, const TensorView& x, Activation kind, double factor = 1.0) {
  const DeviceArgs args(x, "x");
  args(x, "x").rank(2);
  ActivationParams params = make_params(args, out, x, x.size(1), kind);
  params.factor = static_cast<float>(factor);
  SPLITSERVE_RUN(activation, params, args.device());
}

// x holds gates, then what they are multiplied with.
void run_gated(const TensorView& out, const TensorView& x, Activation kind) {
  const DeviceArgs args(x, "x");
  args(x, "x").rank(2);
  const int64_t size = x.size(1) / 2;
  SPLITSERVE_CHECK_VALUE(x.size(1) % 2 == 0, "x: expected an even last dimension, got " << x.size(1));
  ActivationParams params = make_params(args, out, x, size, kind);
  params.y = static_cast<const char*>(params.x) + size * dtype_bytes(params.dtype);
  params.y_stride = params.x_stride;
  SPLITSERVE_RUN(activation, params, args.device());
}

void silu_and_mul(TensorView out, TensorView x) { run_gated(out, x, Activation::kSiluAndMul); }

bool is_tanh(const tvm::ffi::String& approximate) {
  SPLITSERVE_CHECK_VALUE(approximate == "tanh" || approximate == "none",
                         "approximate: expected 'none' or 'tanh', got '" << approximate << "'");
  return approximate == "tanh";
}

void gelu_and_mul(TensorView out, TensorView x, const tvm::ffi::String& approximate) {
  run_gated(out, x, is_tanh(approximate) ? Activation::kGeluTanhAndMul : Activation::kGeluAndMul);
}

void gelu(TensorView out, TensorView x, const tvm::ffi::String& approximate) {
  run(out, x, is_tanh(approximate) ? Activation::kGeluTanh : Activation::kGelu);
}

void add(TensorView out, TensorView x, TensorView y) {
  const DeviceArgs args(x, "x");
  args(x, "x").rank(2);
  ActivationParams params = make_params(args, out, x, x.size(1), Activation::kAdd);
  args(y, "y").activation(params.dtype).rank(2).size(0, params.tokens).size(1, params.size).rows_contiguous();
  params.y = y.data_ptr();
  params.y_stride = y.stride(0);
  SPLITSERVE_RUN(activation, params, args.device());
}

void scale(TensorView out, TensorView x, double factor) {
  SPLITSERVE_CHECK_VALUE(factor > 0.0, "factor: must be positive, got " << factor);
  run(out, x, Activation::kScale, factor);
}

void soft_cap(TensorView out, TensorView x, double cap) {
  SPLITSERVE_CHECK_VALUE(cap > 0.0, "cap: must be positive, got " << cap);
  run(out, x, Activation::kSoftCap, cap);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(silu_and_mul, splitserve::silu_and_mul);
SPLITSERVE_EXPORT(gelu_and_mul, splitserve::gelu_and_mul);
SPLITSERVE_EXPORT(gelu, splitserve::gelu);
SPLITSERVE_EXPORT(add, splitserve::add);
SPLITSERVE_EXPORT(scale, splitserve::scale);
SPLITSERVE_EXPORT(soft_cap, splitserve::soft_cap);
