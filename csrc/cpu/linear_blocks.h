// Blocks of rows against panels of a linear layer, in vector registers: which of its ways a block goes.
#pragma once

#include <type_traits>

#include "cpu/linear_decoded.h"
#include "cpu/linear_rows.h"
#include "cpu/linear_split.h"

#if !defined(__AMX_BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Whether activations become integers, and products are exact.
template <typename Format>
inline constexpr bool kHasIntegerRows = requires { typename Format::Dot; };

// Those of a call that has floats.
inline InputRows<float> float_rows(const LinearParams& p, int64_t row) {
  return {p.floats.floats + row * p.floats.stride, p.floats.stride};
}

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
      if (row_end - row > 2 * Format::kMaxRows && p.depth % kStepInputs<BFloat16> == 0) {
        const BFloat16* const x = static_cast<const BFloat16*>(p.x) + row * p.x_stride;
        return decoded.multiply(p, {x, p.x_stride}, row, row_end, panels);
      }
    }
    panel_rows<Format>(p, row, row_end, panels);
  }

 private:
  std::conditional_t<kIsPlain<Format>, char, DecodedPanel<Format, BFloat16>> decoded;
};

#if defined(__AVX512BF16__)
// Multiplies floats that stand for them. Weights that need no conversion but to floats are made such by every
// tile, others where there is a single one.
template <typename Format>
class FloatRows {
 public:
  // One row waits for memory, or for its own sums, whose floats are two additions per pair; so do two of
  // bfloat16.
  static constexpr int64_t kLeastRows = kIsPlain<Format> ? 3 : 2;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    const int64_t rows = row_end - row;
    const InputRows<float> x = float_rows(p, row);
    if constexpr (kIsPlain<Format>) {
      multiply_rows<Format, FloatTileStep>(p, x, row, row_end, panels);
    } else if (rows > Format::kMaxRows) {
      decoded.multiply(p, x, row, row_end, panels);
    } else {
      multiply_few_rows<Format, FloatTileStep>(p, x, row, row_end, panels);
    }
  }

 private:
  std::conditional_t<kIsPlain<Format>, char, DecodedPanel<Format, float>> decoded;
};
#endif

template <typename Format>
  requires(std::is_same_v<typename Format::X, BFloat16> && !kHasIntegerRows<Format>)
struct BlockRows<Format> {
  static constexpr int64_t kLeastRows = 4 * kDecodedRows, kMostRows = kDecodedBlockRows,
                           kBytes = kRowBlockBytes;

#if defined(__AVX512BF16__)
  static bool takes_floats(int64_t rows) {
    return multiplies_floats() && rows >= FloatRows<Format>::kLeastRows;
  }
#endif

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
#if defined(__AVX512BF16__)
    if (p.floats.floats != nullptr && takes_floats(row_end - row))
      return floats.multiply(p, row, row_end, panels);
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

  static bool takes_floats(int64_t rows) { return !kIsFloat<Format> && rows > kFewRows; }

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    if (row_end - row <= kFewRows) return panel_rows<Format>(p, row, row_end, panels);
    if constexpr (kIsFloat<Format>) {
      const float* const x = static_cast<const float*>(p.x) + row * p.x_stride;
      wide.multiply(p, {x, p.x_stride}, row, row_end, panels);
    } else {
      wide.multiply(p, float_rows(p, row), row, row_end, panels);
    }
  }

 private:
  WidePanel<Format> wide;
};
#endif

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
