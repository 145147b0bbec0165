// Checks and binding of linear.
#include "cpu/linear.h"

#include "cpu/linear_args.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

Epilogue gelu_of(const tvm::ffi::String& approximate) {
  SPLITSERVE_CHECK_VALUE(approximate == "tanh" || approximate == "none",
                         "approximate: expected 'none' or 'tanh', got '" << approximate << "'");
  return approximate == "tanh" ? Epilogue::kGeluTanh : Epilogue::kGelu;
}

void linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> scales, int64_t cols,
            int64_t depth, Optional<TensorView> bias, const Optional<tvm::ffi::String>& approximate) {
  LinearParams params = linear_params(out, x, weight, scales, bias, cols, depth);
  if (approximate.has_value()) params.epilogue = gelu_of(*approximate);
  SPLITSERVE_RUN_KERNEL(linear, params);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(linear, splitserve::linear);
