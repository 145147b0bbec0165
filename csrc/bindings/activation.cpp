// Checks and binding of silu_and_mul and gelu.
#include "common/activation.h"

#include <string_view>

#include "common/device_args.h"

namespace splitserve {
namespace {

void run(const TensorView& out, const TensorView& x, Activation kind) {
  const DeviceArgs args(x, "x");
  ActivationParams params{};
  params.dtype = args(x, "x").rank(2).rows_contiguous().activation();
  params.tokens = x.size(0);
  params.size = x.size(1);
  if (kind == Activation::kSiluAndMul) {
    SPLITSERVE_CHECK_VALUE(params.size % 2 == 0, "x: expected an even last dimension, got " << params.size);
    params.size /= 2;
  }
  args(out, "out")
      .activation(params.dtype)
      .rank(2)
      .size(0, params.tokens)
      .size(1, params.size)
      .rows_contiguous();
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  params.kind = kind;
  SPLITSERVE_RUN(activation, params, args.device());
}

void silu_and_mul(TensorView out, TensorView x) { run(out, x, Activation::kSiluAndMul); }

void gelu(TensorView out, TensorView x, const tvm::ffi::String& approximate) {
  const bool is_tanh = approximate == "tanh";
  SPLITSERVE_CHECK_VALUE(is_tanh || approximate == "none",
                         "approximate: expected 'none' or 'tanh', got '" << approximate << "'");
  run(out, x, is_tanh ? Activation::kGeluTanh : Activation::kGelu);
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(silu_and_mul, splitserve::silu_and_mul);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gelu, splitserve::gelu);
