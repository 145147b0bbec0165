// The tile under linear: some rows of x against one panel of packed weights.
//
// Each sum is one lane of one register and walks the input dimension from its start, a pair at a time. So its
// bits depend on the row and the column alone, never on the tile's shape or on its neighbours.
#pragma once

#include "cpu/dot_step.h"
#include "cpu/packed.h"

namespace splitserve::SPLITSERVE_ISA {

inline constexpr int kPanelVecs = static_cast<int>(kPanelCols) / kLanes;

// Rows whose sums, with their operands, fit the register file.
#if defined(__AVX512BF16__)
inline constexpr int kMaxTileRows = 8;
#elif defined(__AVX512F__)
inline constexpr int kMaxTileRows = 6;
#elif defined(__AVX2__)
inline constexpr int kMaxTileRows = 2;
#else
inline constexpr int kMaxTileRows = 1;
#endif

// sums[i][v] += x[i] . (columns of register v), over pairs whose operands `broadcast` gives.
template <typename T, int kRows, typename Broadcast>
SPLITSERVE_INLINE void panel_step(const T* weights, const Broadcast& broadcast,
                                  Vec (&sums)[kRows][kPanelVecs]) {
  using Step = DotStep<T>;
  typename Step::Operand x[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) x[i] = broadcast(i);
#pragma GCC unroll 8
  for (int v = 0; v < kPanelVecs; ++v) {
    const typename Step::Operand w = Step::load(weights + v * kLanes * Step::kPair);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sums[i][v] = Step::accumulate(sums[i][v], x[i], w);
  }
}

// sums[i][v] += x[i] . (columns of register v); `panel` is the packed panel of the columns. Meanwhile kLines
// cache lines per step are fetched from `ahead` on.
template <typename T, int kRows, int kLines>
SPLITSERVE_INLINE void panel_tile(const T* const* x, const T* panel, int64_t depth, const char* ahead,
                                  Vec (&sums)[kRows][kPanelVecs]) {
  using Step = DotStep<T>;
  constexpr int64_t kStepSize = kPanelCols * Step::kPair;
  const int64_t steps = depth / Step::kPair;
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 2
    for (int line = 0; line < kLines; ++line) {
      __builtin_prefetch(ahead + (step * kLines + line) * 64, 0, 3);
    }
    panel_step<T, kRows>(
        panel + step * kStepSize,
        [&](int i) __attribute__((always_inline)) { return Step::broadcast(x[i] + step * Step::kPair); },
        sums);
  }
  const int64_t done = steps * Step::kPair;
  if (done < depth) {
    panel_step<T, kRows>(
        panel + steps * kStepSize,
        [&](int i) __attribute__((always_inline)) { return broadcast_end(x[i] + done, depth - done); }, sums);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
