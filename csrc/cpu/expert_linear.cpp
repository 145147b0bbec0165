// Checks and binding of expert_linear.
#include "common/experts.h"
#include "cpu/device.h"
#include "cpu/linear_args.h"

namespace splitserve {
namespace {

void check_starts(const ExpertLinearParams& p) {
  int64_t last = 0;
  for (int64_t expert = 0; expert <= p.experts; ++expert) {
    SPLITSERVE_CHECK_VALUE(p.starts[expert] >= last, "starts: must not fall");
    last = p.starts[expert];
  }
  SPLITSERVE_CHECK_VALUE(p.starts[0] >= 0 && last <= p.linear.rows, "starts: expected 0 to "
                                                                        << p.linear.rows << ", got "
                                                                        << p.starts[0] << " to " << last);
}

void expert_linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> scales,
                   TensorView starts, int64_t cols, int64_t depth, Optional<TensorView> bias) {
  ExpertLinearParams params{};
  cpu_arg(starts, "starts").rank(1);
  params.experts = starts.size(0) - 1;
  SPLITSERVE_CHECK_VALUE(params.experts >= 1 && params.experts <= kMaxExperts,
                         "starts: expected 1 to " << kMaxExperts << " experts, got " << params.experts);
  params.starts = cpu_arg(starts, "starts").vector(kInt32Type, params.experts + 1).data<const int32_t>();
  params.linear = linear_params(out, x, weight, scales, bias, cols, depth, params.experts);
  SPLITSERVE_RUN_CHECKED(expert_linear, check_starts, params, x.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(expert_linear, splitserve::expert_linear);
