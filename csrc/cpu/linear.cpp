// Checks and binding of linear.
#include "cpu/linear.h"

#include "cpu/linear_args.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

void linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> scales, int64_t cols,
            int64_t depth, Optional<TensorView> bias) {
  const LinearParams params = linear_params(out, x, weight, scales, bias, cols, depth);
  SPLITSERVE_RUN_KERNEL(linear, params);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(linear, splitserve::linear);
