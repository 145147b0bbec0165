// A tile of dot products between rows as they lie in memory, along their contiguous dimension.
//
// Each product a[i].b[j] has one vector accumulator that walks the dimension from its start in steps of one
// register, and its lanes are added at the end by sum_lanes. So its bits depend on the two rows alone, never
// on the tile's shape or on its neighbours: one row and a thousand rows give the same result.
#pragma once

#include "cpu/dot_step.h"

namespace splitserve::SPLITSERVE_ISA {

// out[i * kCols + j] = sum over d < size of a[i][d] * b[j][d]
template <typename T, int kRows, int kCols>
SPLITSERVE_INLINE void dot_tile(const T* const* a, const T* const* b, int64_t size, float* out) {
  using Step = DotStep<T>;
  constexpr int kCount = kRows * kCols;
  // Padded to whole groups of four for sum_lanes.
  Vec sums[(kCount + 3) / 4 * 4] = {};
  const auto step = [&](const auto& load) __attribute__((always_inline)) {
    typename Step::Operand right[kCols];
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) right[j] = load(b[j]);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const typename Step::Operand left = load(a[i]);
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) {
        sums[i * kCols + j] = Step::accumulate(sums[i * kCols + j], left, right[j]);
      }
    }
  };
  int64_t d = 0;
  for (; d + Step::kSize <= size; d += Step::kSize) {
    step([d](const T* p) __attribute__((always_inline)) { return Step::load(p + d); });
  }
  if (d < size) {
    step([d, size](const T* p) __attribute__((always_inline)) { return load_end(p + d, size - d); });
  }
#pragma GCC unroll 8
  for (int group = 0; group < kCount; group += 4) {
    const Quad sum = sum_lanes(sums[group], sums[group + 1], sums[group + 2], sums[group + 3]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if (group + i < kCount) out[group + i] = sum[i];
    }
  }
}

// The widest tile whose accumulators and operands fit the register file.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 4;
inline constexpr int kTileCols = 4;
#else
inline constexpr int kTileRows = 4;
inline constexpr int kTileCols = 2;
#endif

}  // namespace splitserve::SPLITSERVE_ISA
