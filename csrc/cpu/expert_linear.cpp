// Checks and binding of expert_linear.
#include "cpu/device.h"
#include "cpu/linear_args.h"

namespace splitserve {
namespace {

void expert_linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> scales,
                   TensorView starts, int64_t cols, int64_t depth, Optional<TensorView> bias) {
  ExpertLinearParams params{};
  set_starts(&params, starts);
  params.linear = linear_params(out, x, weight, scales, bias, cols, depth, params.experts);
  SPLITSERVE_RUN_CHECKED(expert_linear, check_starts, params, x.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(expert_linear, splitserve::expert_linear);
