// How a tile multiplies a pair of a row with pairs of weights: as they are, or as floats with the same bits.
#pragma once

#include "cpu/denormal_mode.h"
#include "cpu/dot_step.h"
#include "cpu/fetch.h"

namespace splitserve::SPLITSERVE_ISA {

// Rows as they are multiplied, and how far they are apart.
template <typename Input>
struct InputRows {
  const Input* data;
  int64_t stride;

  SPLITSERVE_INLINE InputRows from(int64_t row, int64_t input) const {
    return {data + row * stride + input, stride};
  }
};

// Rows and weights as they are.
template <typename X>
struct TileStep : DotStep<X> {
  using Input = X;
  using typename DotStep<X>::Operand;
  // Whether zeros follow a row as far as its last pair goes.
  static constexpr bool kIsPadded = false;
  // Whether outputs of many rows go past the caches.
  static constexpr bool kStreams = false;
  // How much farther ahead than into the L1 cache weights that are read once are fetched into the L2 cache.
  static constexpr int64_t kFartherBytes = kStreamAheadBytes;

  SPLITSERVE_INLINE static Operand weights(const Operand& stored) { return stored; }

  // Of the thread while it multiplies.
  struct Mode {
    template <typename Sums>
    SPLITSERVE_INLINE void enter(Sums&) const {}
    template <typename Sums>
    SPLITSERVE_INLINE void leave(Sums&) const {}
  };
};

#if defined(__AVX512BF16__)
// Floats that stand for the pairs of an instruction that multiplies bfloat16. It adds the second product of a
// pair first, each rounded by itself, takes denormals as zero and makes them zero. So the neighbours of a
// pair have changed their places in the rows.
struct FloatTileStep {
  using Input = float;
  struct Operand {
    Vec second, first;
  };
  static constexpr int kPair = 2;
  static constexpr bool kIsPadded = true, kStreams = true;
  // Up to eight rows, which keep memory and multiplier busy at once, take 0.94 to 0.99 of the time.
  static constexpr int64_t kFartherBytes = 2 * kStreamAheadBytes;

  SPLITSERVE_INLINE static Operand weights(DotStep<BFloat16>::Operand stored) {
    const UintVec pairs = reinterpret_cast<UintVec>(stored);
    return {as_float(pairs & 0xffff0000u), as_float(pairs << 16)};
  }
  SPLITSERVE_INLINE static const Operand& weights(const Operand& decoded) { return decoded; }
  SPLITSERVE_INLINE static Operand broadcast(const float* p) {
    return {SPLITSERVE_ISA::broadcast(p[0]), SPLITSERVE_ISA::broadcast(p[1])};
  }
  SPLITSERVE_INLINE static Vec accumulate(Vec sum, const Operand& a, const Operand& b) {
    return fma(a.first, b.first, fma(a.second, b.second, sum));
  }

  using Mode = DenormalMode;
};
#endif

}  // namespace splitserve::SPLITSERVE_ISA
