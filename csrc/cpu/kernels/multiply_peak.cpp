// Products out of registers alone: what the multiplier can do at most, for benchmarks to compare with.
#include "cpu/multiply_peak.h"

#include "cpu/amx.h"
#include "cpu/dot_step.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Enough that a sum is done before its next product, and few enough for the registers.
inline constexpr int kPeakSums = kLanes == 16 ? 16 : 8;

template <typename T>
void run(const MultiplyPeakParams& p) {
  using Step = DotStep<T>;
  constexpr int64_t kSteps = kPeakRoundProducts / (kPeakSums * Step::kSize);
  static_assert(kSteps * kPeakSums * Step::kSize == kPeakRoundProducts);
  parallel_tasks(p.tasks, p.tasks * p.rounds * kPeakRoundProducts, [&](int64_t) {
    const typename Step::Operand operand = Step::load(static_cast<const T*>(p.x));
    // They differ, or the compiler would make one of them.
    Vec sums[kPeakSums];
    for (int i = 0; i < kPeakSums; ++i) sums[i] = broadcast(static_cast<float>(i));
    for (int64_t step = 0; step < p.rounds * kSteps; ++step) {
#pragma GCC unroll 16
      for (int i = 0; i < kPeakSums; ++i) sums[i] = Step::accumulate(sums[i], operand, operand);
    }
    asm volatile("" : : "m"(sums));
  });
}

#if defined(__AMX_BF16__)
template <>
void run<BFloat16>(const MultiplyPeakParams& p) {
  static_assert(kPeakRoundProducts == 4 * kTileSize * kTileSize * kTileDepth);
  parallel_tasks(p.tasks, p.tasks * p.rounds * kPeakRoundProducts, [&](int64_t) {
    const TileUse use;
    TileShapes shapes;
    shapes.set<0, 1, 2, 3, 4, 5>(kTileSize, kTileRowBytes);
    shapes.use();
    // The same row 16 times.
    tile_load<4>(p.x, 0), tile_load<5>(p.x, 0);
    for (int64_t round = 0; round < p.rounds; ++round) {
      tile_multiply<0, 4, 5>();
      tile_multiply<1, 4, 5>();
      tile_multiply<2, 4, 5>();
      tile_multiply<3, 4, 5>();
    }
  });
}
#endif

}  // namespace

void multiply_peak(const MultiplyPeakParams& params) {
  params.dtype == DType::kFloat32 ? run<float>(params) : run<BFloat16>(params);
}

}  // namespace splitserve::SPLITSERVE_ISA
