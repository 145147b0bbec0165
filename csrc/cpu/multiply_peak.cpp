// Checks and binding of multiply_peak.
#include "cpu/multiply_peak.h"

#include "common/check.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

int64_t multiply_peak(TensorView x, int64_t rounds) {
  constexpr int64_t kMaxRounds = int64_t{1} << 32;
  SPLITSERVE_CHECK_VALUE(rounds >= 1 && rounds <= kMaxRounds, "rounds: expected 1 to 2^32, got " << rounds);
  MultiplyPeakParams params{};
  params.dtype = cpu_arg(x, "x").rank(1).size(0, kPeakOperandSize).rows_contiguous().activation();
  params.x = x.data_ptr();
  params.tasks = num_threads();
  params.rounds = rounds;
  SPLITSERVE_RUN_KERNEL(multiply_peak, params);
  return 2 * params.tasks * params.rounds * kPeakRoundProducts;
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(multiply_peak, splitserve::multiply_peak);
