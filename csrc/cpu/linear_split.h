// Blocks of rows against panels of bfloat16 on processors that multiply floats: rows become floats once, and
// weights in registers, where a tile of enough rows shares a pair that was split.
//
// Every lane of the sums walks the inputs from their start, as in panel_tile.h: the bits are the same.
#pragma once

#include "cpu/linear_decoded.h"

#if defined(__AVX2__) && !defined(SPLITSERVE_HAS_BF16_DOT)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows whose sums, of two registers of outputs, stay in registers beside weights and an input.
inline constexpr int kSplitRows = kVecRegisters == 32 ? 12 : 6;

SPLITSERVE_INLINE DotStep<BFloat16>::Operand load_pairs(const char* p) {
  return DotStep<BFloat16>::load(reinterpret_cast<const BFloat16*>(p));
}

// sums[i][v] += the products of a pair of inputs of every row.
template <int kRows>
SPLITSERVE_INLINE void add_pair(Vec (&sums)[kRows][kDecodedVecs], const char* pair, const InputRows<float>& x,
                                int64_t input) {
  const auto add = [&](int i, Vec first, Vec second, int64_t place) __attribute__((always_inline)) {
    const Vec own = broadcast(x.data[i * x.stride + place]);
    sums[i][0] = fma(own, first, sums[i][0]);
    sums[i][1] = fma(own, second, sums[i][1]);
  };
  const char* const other = pair + sizeof(Vec);
  if constexpr (kVecRegisters == 32) {
    const auto first = load_pairs(pair), second = load_pairs(other);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      add(i, first.even, second.even, input);
      add(i, first.odd, second.odd, input + 1);
    }
  } else {
    // Halves that are not in work take no registers.
    const Vec even = load_pairs(pair).even, other_even = load_pairs(other).even;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) add(i, even, other_even, input);
    const Vec odd = load_pairs(pair).odd, other_odd = load_pairs(other).odd;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) add(i, odd, other_odd, input + 1);
  }
}

// totals [kRows, 32] += x . a panel's `pairs`, of kDecodedCols outputs. Meanwhile lines are fetched from
// `ahead` on.
template <int kRows, Fetched kFetched>
[[gnu::noinline]] void multiply_pairs(float* totals, const InputRows<float>& x, const char* pairs,
                                      int64_t steps, const char* ahead) {
  constexpr int64_t kStepBytes = BFloat16Weights::kStepBytes;
  Vec sums[kRows][kDecodedVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kDecodedVecs; ++v) sums[i][v] = load(totals + i * kPanelCols + v * kLanes);
  }
  const int64_t units = steps / kUnitSteps;
  for (int64_t unit = 0; unit < units; ++unit) {
    fetch<kFetched>(ahead, unit);
#pragma GCC unroll 2
    for (int j = 0; j < kUnitSteps; ++j) {
      const int64_t step = unit * kUnitSteps + j;
      add_pair(sums, pairs + step * kStepBytes, x, 2 * step);
    }
  }
  for (int64_t step = units * kUnitSteps; step < steps; ++step)
    add_pair(sums, pairs + step * kStepBytes, x, 2 * step);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kDecodedVecs; ++v) store(totals + i * kPanelCols + v * kLanes, sums[i][v]);
  }
}

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
class SplitPanel {
 public:
  // Of rows [row, row_end), which x holds.
  void multiply(const LinearParams& p, const InputRows<float>& x, int64_t row, int64_t row_end,
                const Panels& panels) {
    const int64_t rows = row_end - row, passes = ceil_div(rows, kSplitRows), all_steps = ceil_div(p.depth, 2);
    const char* const panel = panel_of<BFloat16Weights>(p, panels.current);
    std::memset(sums, 0, static_cast<size_t>(rows * kPanelCols) * sizeof *sums);
    for (int64_t first = 0; first < all_steps; first += kStretchSteps) {
      const int64_t left = all_steps - first, steps = left < kStretchSteps ? left : kStretchSteps;
      const char* const pairs = panel + first * BFloat16Weights::kStepBytes;
      for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t begin = rows * pass / passes, count = rows * (pass + 1) / passes - begin;
        const Ahead ahead = ahead_of<BFloat16Weights>(p, panels, pass, passes);
        for (int64_t col = 0; col < kPanelCols; col += kDecodedCols) {
          const Share share = col == 0 ? ahead.share : Share::kNone;
          add(sums + begin * kPanelCols + col, count, x.from(begin, 2 * first), pairs + 4 * col, steps,
              first / kUnitSteps, {ahead.start, share});
        }
      }
    }
    write_panel(p, row, rows, panels.current * kPanelCols, sums);
  }

 private:
  // With AVX2 half a panel of so many pairs of inputs, 16 KiB, stays in the L1 cache beside those of some
  // rows. A whole panel is not worth sums that are put away between stretches.
  static constexpr int64_t kStretchSteps = kVecRegisters == 32 ? INT64_MAX : 256;

  // unit: where the walk of those that are fetched goes on.
  static void add(float* totals, int64_t rows, const InputRows<float>& x, const char* pairs, int64_t steps,
                  int64_t unit, const Ahead& ahead) {
    using Weights = BFloat16Weights;
    with_rows<kSplitRows>(rows, [&](auto count) {
      const auto multiply = [&](auto fetched) __attribute__((always_inline)) {
        constexpr Fetched kFetched = decltype(fetched)::kValue;
        const char* const start = ahead.start + unit * kFetched.lines * kFetchedLineBytes;
        multiply_pairs<count, kFetched>(totals, x, pairs, steps, start);
      };
      switch (ahead.share) {
        case Share::kNone:
          return multiply_pairs<count, Fetched{0, false}>(totals, x, pairs, steps, nullptr);
        case Share::kQuarter:
          return multiply(Lines<Fetched{kQuarterLines<Weights>, false}>());
        case Share::kHalf:
          return multiply(Lines<Fetched{kHalfLines<Weights>, false}>());
        case Share::kAll:
          return multiply(Lines<Fetched{kAllLines<Weights>, true}>());
      }
    });
  }

  template <Fetched kFetched>
  struct Lines {
    static constexpr Fetched kValue = kFetched;
  };

  alignas(64) float sums[kDecodedBlockRows * kPanelCols];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
