// Products of activations as words, integers of 16 bits, or as bytes, with weights as unsigned bytes: four
// inputs per 32-bit lane, added up in int32, which is exact for up to 128 inputs.
//
// Of the words of four inputs there are two times 32 bits, `first` and `second`: either their upper and lower
// bytes, both signed, or (kIsPairs) the words of the first and third of the four, and of the others. The
// former meet the same weights, a phase each; the latter are kOperands of their own.
#pragma once

#include "cpu/byte_products.h"
#include "cpu/packed.h"

#if defined(__AVX2__) && !defined(__AMX_BF16__)
#define SPLITSERVE_MULTIPLIES_WORDS 1

namespace splitserve::SPLITSERVE_ISA {

// Bits of the largest words, without their signs.
inline constexpr uint32_t kLongestWord = 15;

// Words of a row are next to each other for a stretch of inputs, then those of the next row come: rows are a
// constant away from each other.
template <typename Dot>
inline constexpr int64_t kStretchBytes = kStretchInputs * Dot::kWordBytes;

// Where the words of a row begin, from an input on.
template <typename Dot>
SPLITSERVE_INLINE int64_t word_offset(int64_t input, int64_t row, int64_t rows) {
  return (input / kStretchInputs * rows + row) * kStretchBytes<Dot> +
         input % kStretchInputs * Dot::kWordBytes;
}

// By VNNI: products with upper and with lower bytes are a phase each.
struct ByteDot {
  static constexpr int64_t kWordBytes = 2;
  static constexpr bool kIsPairs = false;
  static constexpr int kPhases = 2;
  static constexpr int kOperands = 1;
  using Weights = IntVec;
  using Inputs = IntVec;
  // What sums of the first phase begin with, and what joins them afterwards: 256 * first + rest.
  static int32_t first(int32_t begin) { return begin >> 8; }
  static int32_t rest(int32_t begin) {
    return static_cast<int32_t>((static_cast<uint32_t>(begin) & 255u) << kRestShift);
  }
  SPLITSERVE_INLINE static IntVec joined(IntVec sum, IntVec rest) {
#if defined(__AVX512VBMI2__)
    return reinterpret_cast<IntVec>(
        _mm512_shldi_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(rest), 8));
#else
    return (sum << 8) + rest;
#endif
  }
  SPLITSERVE_INLINE static Weights weights(UintVec bytes) { return reinterpret_cast<IntVec>(bytes); }
  template <int kPhase>
  SPLITSERVE_INLINE static Inputs inputs(const char* words) {
    return broadcast_four(words + kPhase * 4);
  }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, Weights weights, Inputs inputs) {
    return add_byte_products(sum, weights, inputs);
  }

 private:
#if defined(__AVX512VBMI2__)
  // In the upper bits of what is shifted in.
  static constexpr int kRestShift = 24;
#else
  static constexpr int kRestShift = 0;
#endif
};

// By products of 16 bits, in a single phase; kHasVnni: which are added up by the same instruction.
template <bool kHasVnni>
struct PairDotOf {
  static constexpr int64_t kWordBytes = 2;
  static constexpr bool kIsPairs = true, kIsFused = kHasVnni;
  static constexpr int kPhases = 1;
  static constexpr int kOperands = 2;
  struct Weights {
    IntVec even, odd;
  };
  struct Inputs {
    IntVec first, second;
  };
  static int32_t first(int32_t begin) { return begin; }
  static int32_t rest(int32_t) { return 0; }
  SPLITSERVE_INLINE static Weights weights(UintVec bytes) {
    typedef uint16_t Halves __attribute__((vector_size(kLanes * 4)));
    return {reinterpret_cast<IntVec>(bytes & 0x00ff00ffu),
            reinterpret_cast<IntVec>(reinterpret_cast<Halves>(bytes) >> 8)};
  }
  template <int>
  SPLITSERVE_INLINE static Inputs inputs(const char* words) {
    return {broadcast_four(words), broadcast_four(words + 4)};
  }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, const Weights& weights, const Inputs& inputs) {
    return accumulate(accumulate(sum, weights.even, inputs.first), weights.odd, inputs.second);
  }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, IntVec weights, IntVec inputs) {
    if constexpr (kHasVnni) return add_half_products(sum, weights, inputs);
    return sum + half_products(weights, inputs);
  }
};
using PairDot = PairDotOf<false>;
using VnniPairDot = PairDotOf<true>;

// Of activations as bytes, by VNNI: the first phase alone.
struct ShortDot : ByteDot {
  static constexpr int64_t kWordBytes = 1;
  static constexpr int kPhases = 1;
  static int32_t first(int32_t begin) { return begin; }
  static int32_t rest(int32_t) { return 0; }
};

#if defined(SPLITSERVE_MAY_USE_VNNI)
// The same by sums of two products of 16 bits, which those with codes of 4 bits fit.
struct ShortPairDot : ShortDot {
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, Weights weights, Inputs inputs) {
    return sum + half_products(byte_pair_products(weights, inputs), ones());
  }

 private:
  SPLITSERVE_INLINE static IntVec ones() { return IntVec{} + 0x00010001; }
};
#endif

}  // namespace splitserve::SPLITSERVE_ISA

#endif
