// Blocks of rows against panels of a linear layer, in vector registers: which of its ways a block goes, and
// the rows as that needs them.
#pragma once

#include <type_traits>

#include "cpu/linear_decoded.h"
#include "cpu/linear_rows.h"
#include "cpu/linear_split.h"
#include "cpu/scratch.h"

#if !defined(__AMX_BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Whether activations become integers, and products are exact.
template <typename Format>
inline constexpr bool kHasIntegerRows = requires { typename Format::Dot; };

// Rows of a block as they are multiplied; belongs to a thread and its part of the tasks.
template <typename X, typename Decoded>
class BlockInputs {
 public:
  // They are converted if they are others than those of the last call. No data if there is no memory for
  // them.
  InputRows<Decoded> rows_of(const LinearParams& p, int64_t row, int64_t row_end) {
    const X* const x = static_cast<const X*>(p.x) + row * p.x_stride;
    if constexpr (std::is_same_v<X, Decoded>) {
      if (p.depth % kStepInputs<Decoded> == 0) return {x, p.x_stride};
    }
    if (x != first || row_end - row != count) convert(x, p.x_stride, row_end - row, p.depth);
    return rows;
  }

 private:
  // What lies beyond the last input of a pair is zero.
  void convert(const X* x, int64_t x_stride, int64_t num_rows, int64_t depth) {
    first = x, count = num_rows;
    const int64_t stride = ceil_div(depth, kLanes) * kLanes;
    Decoded* const own =
        static_cast<Decoded*>(task_scratch(num_rows * stride * static_cast<int64_t>(sizeof(Decoded))));
    for (int64_t i = 0; own != nullptr && i < num_rows; ++i) {
      for (int64_t k = 0; k < depth; k += kLanes)
        store(own + i * stride + k, in_order(load_up_to(x + i * x_stride + k, depth - k)));
    }
    rows = {own, stride};
  }

  // The neighbours of a pair, which changes their places.
  SPLITSERVE_INLINE static Vec in_order(Vec inputs) {
#if defined(__AVX512BF16__)
    if constexpr (kStandsForPairs<Decoded>) return _mm512_permute_ps(inputs, 0xb1);
#endif
    return inputs;
  }

  const X* first = nullptr;
  int64_t count = 0;
  InputRows<Decoded> rows{};
};

#if defined(SPLITSERVE_HAS_BF16_DOT)
template <typename Format>
inline constexpr bool kIsPlain = Format::kFormat == WeightFormat::kBFloat16;

// Multiplies pairs of bfloat16. Weights that are converted a few times, or need no conversion, cost less than
// a way through memory.
template <typename Format>
class PairRows {
 public:
  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    if constexpr (!kIsPlain<Format>) {
      if (row_end - row > 2 * Format::kMaxRows) {
        const InputRows<BFloat16> x = inputs.rows_of(p, row, row_end);
        if (x.data != nullptr) return decoded.multiply(p, x, row, row_end, panels);
      }
    }
    panel_rows<Format>(p, row, row_end, panels);
  }

 private:
  BlockInputs<BFloat16, BFloat16> inputs;
  std::conditional_t<kIsPlain<Format>, char, DecodedPanel<Format, BFloat16>> decoded;
};

#if defined(__AVX512BF16__)
// Multiplies floats that stand for them. Weights that need no conversion but to floats are made such by every
// tile, others where there is a single one.
template <typename Format>
class FloatRows {
 public:
  // Returns false, and does nothing, for few rows, or if there is no memory for them.
  bool multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    const int64_t rows = row_end - row;
    if (rows < kLeastRows) return false;
    const InputRows<float> x = inputs.rows_of(p, row, row_end);
    if (x.data == nullptr) return false;
    if constexpr (kIsPlain<Format>) {
      multiply_rows<Format, FloatTileStep>(p, x, row, row_end, panels);
    } else if (rows > Format::kMaxRows) {
      decoded.multiply(p, x, row, row_end, panels);
    } else {
      multiply_few_rows<Format, FloatTileStep>(p, x, row, row_end, panels);
    }
    return true;
  }

 private:
  // One row waits for memory, or for its own sums, whose floats are two additions per pair; so do two of
  // bfloat16.
  static constexpr int64_t kLeastRows = kIsPlain<Format> ? 3 : 2;

  BlockInputs<BFloat16, float> inputs;
  std::conditional_t<kIsPlain<Format>, char, DecodedPanel<Format, float>> decoded;
};
#endif

template <typename Format>
  requires(std::is_same_v<typename Format::X, BFloat16> && !kHasIntegerRows<Format>)
struct BlockRows<Format> {
  static constexpr int64_t kLeastRows = 4 * kDecodedRows, kMostRows = kDecodedBlockRows,
                           kBytes = kRowBlockBytes;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
#if defined(__AVX512BF16__)
    if (multiplies_floats() && floats.multiply(p, row, row_end, panels)) return;
#endif
    pairs.multiply(p, row, row_end, panels);
  }

 private:
#if defined(__AVX512BF16__)
  FloatRows<Format> floats;
#endif
  PairRows<Format> pairs;
};
#else
// How more rows meet weights than a few tiles have.
template <typename Format>
class WidePanel : public DecodedPanel<Format, float> {};

#if defined(__AVX2__)
// Pairs of bfloat16 are split in registers, by every pass of some rows.
template <typename Format>
  requires(Format::kFormat == WeightFormat::kBFloat16)
class WidePanel<Format> : public SplitPanel {};
#endif

// Weights that are multiplied with integers have ways of their own.
template <typename Format>
  requires(!kHasIntegerRows<Format>)
struct BlockRows<Format> {
  static constexpr int64_t kLeastRows = 4 * kDecodedRows, kMostRows = kDecodedBlockRows,
                           kBytes = kRowBlockBytes;
  // Weights that are read or converted a few times cost less than a way through memory.
  static constexpr bool kIsPlain = kIsFloat<Format> || Format::kFormat == WeightFormat::kBFloat16;
  static constexpr int64_t kFewRows = (kIsPlain ? 2 : 1) * Format::kMaxRows;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    if (row_end - row <= kFewRows) return panel_rows<Format>(p, row, row_end, panels);
    const InputRows<float> x = inputs.rows_of(p, row, row_end);
    if (x.data == nullptr) return panel_rows<Format>(p, row, row_end, panels);
    wide.multiply(p, x, row, row_end, panels);
  }

 private:
  BlockInputs<typename Format::X, float> inputs;
  WidePanel<Format> wide;
};
#endif

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
