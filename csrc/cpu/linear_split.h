// Blocks of rows against panels of bfloat16 on processors that multiply floats: rows become floats once, and
// weights in registers, where a tile of enough rows shares a pair that was split.
//
// Every lane of the sums walks the inputs from their start, as in panel_tile.h: the bits are the same.
#pragma once

#include "cpu/linear_decoded.h"

#if defined(__AVX2__) && !defined(SPLITSERVE_HAS_BF16_DOT)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows whose sums, of two registers of outputs, stay in registers beside two pairs and an input.
inline constexpr int kSplitRows = kVecRegisters == 32 ? 12 : 5;

using SplitPair = DotStep<BFloat16>::Operand;

SPLITSERVE_INLINE SplitPair split_pair(const char* p) {
#if defined(__AVX512F__)
  return DotStep<BFloat16>::load(reinterpret_cast<const BFloat16*>(p));
#else
  // A shift would take one of the two units that multiply.
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p));
  const __m128i order = _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
  return {_mm256_castsi256_ps(_mm256_shuffle_epi8(pairs, _mm256_broadcastsi128_si256(order))),
          as_float(reinterpret_cast<UintVec>(pairs) & 0xffff0000u)};
#endif
}

// sums[i][v] += the products of a pair of inputs of every row.
template <int kRows>
SPLITSERVE_INLINE void add_pair(Vec (&sums)[kRows][kDecodedVecs], const char* pair, const InputRows<float>& x,
                                int64_t input) {
  const SplitPair first = split_pair(pair), second = split_pair(pair + sizeof(Vec));
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    const float* const inputs = x.data + i * x.stride + input;
    const Vec even = broadcast(inputs[0]);
    sums[i][0] = fma(even, first.even, sums[i][0]);
    sums[i][1] = fma(even, second.even, sums[i][1]);
    const Vec odd = broadcast(inputs[1]);
    sums[i][0] = fma(odd, first.odd, sums[i][0]);
    sums[i][1] = fma(odd, second.odd, sums[i][1]);
  }
}

// totals [kRows, 32] = x . a panel's `pairs`, of kDecodedCols outputs. Meanwhile lines are fetched from
// `ahead` on.
template <int kRows, Fetched kFetched>
[[gnu::noinline]] void multiply_pairs(float* totals, const InputRows<float>& x, const char* pairs,
                                      int64_t steps, const char* ahead) {
  constexpr int64_t kStepBytes = BFloat16Weights::kStepBytes;
  Vec sums[kRows][kDecodedVecs] = {};
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
    const int64_t rows = row_end - row, passes = ceil_div(rows, kSplitRows), steps = ceil_div(p.depth, 2);
    const char* const panel = panel_of<BFloat16Weights>(p, panels.current);
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t begin = rows * pass / passes, count = rows * (pass + 1) / passes - begin;
      const Ahead ahead = ahead_of<BFloat16Weights>(p, panels, pass, passes);
      for (int64_t col = 0; col < kPanelCols; col += kDecodedCols) {
        const Share share = col == 0 ? ahead.share : Share::kNone;
        add(sums + begin * kPanelCols + col, count, x.from(begin, 0), panel + 4 * col, steps,
            {ahead.start, share});
      }
    }
    write_panel(p, row, rows, panels.current * kPanelCols, sums);
  }

 private:
  static void add(float* totals, int64_t rows, const InputRows<float>& x, const char* pairs, int64_t steps,
                  const Ahead& ahead) {
    using Weights = BFloat16Weights;
    with_rows<kSplitRows>(rows, [&](auto count) {
      switch (ahead.share) {
        case Share::kNone:
          return multiply_pairs<count, Fetched{0, false}>(totals, x, pairs, steps, nullptr);
        case Share::kQuarter:
          return multiply_pairs<count, Fetched{kQuarterLines<Weights>, false}>(totals, x, pairs, steps,
                                                                               ahead.start);
        case Share::kHalf:
          return multiply_pairs<count, Fetched{kHalfLines<Weights>, false}>(totals, x, pairs, steps,
                                                                            ahead.start);
        case Share::kAll:
          return multiply_pairs<count, Fetched{kAllLines<Weights>, true}>(totals, x, pairs, steps,
                                                                          ahead.start);
      }
    });
  }

  alignas(64) float sums[kDecodedBlockRows * kPanelCols];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
