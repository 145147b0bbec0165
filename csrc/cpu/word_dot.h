// Products of activations as words with weights as unsigned bytes: four inputs per 32-bit lane, added up in
// int32, which is exact for up to 128 inputs.
//
// Of the words of four inputs there are two times 32 bits, `first` and `second`: either their upper and lower
// bytes, both signed, or (kIsPairs) the words of the first and third of the four, and of the others.
#pragma once

#include "cpu/byte_products.h"

#if defined(__AVX2__) && !defined(__AMX_BF16__)
#define SPLITSERVE_MULTIPLIES_WORDS 1

namespace splitserve::SPLITSERVE_ISA {

inline constexpr int64_t kWordBytes = 2;

// By VNNI.
struct ByteDot {
  static constexpr bool kIsPairs = false;
  using Weights = IntVec;
  struct Sums {
    IntVec high, low;
  };
  // Of no products, but `less`.
  SPLITSERVE_INLINE static Sums first(IntVec less) { return {IntVec{}, less}; }
  SPLITSERVE_INLINE static Weights weights(UintVec bytes) { return reinterpret_cast<IntVec>(bytes); }
  SPLITSERVE_INLINE static void accumulate(Sums& sums, Weights weights, IntVec first, IntVec second) {
    sums.high = add_byte_products(sums.high, weights, first);
    sums.low = add_byte_products(sums.low, weights, second);
  }
  SPLITSERVE_INLINE static IntVec total(const Sums& sums) { return (sums.high << 8) + sums.low; }
};

#if defined(SPLITSERVE_MAY_USE_VNNI)
// By products of 16 bits.
struct PairDot {
  static constexpr bool kIsPairs = true;
  struct Weights {
    IntVec even, odd;
  };
  struct Sums {
    IntVec both;
  };
  SPLITSERVE_INLINE static Sums first(IntVec less) { return {less}; }
  SPLITSERVE_INLINE static Weights weights(UintVec bytes) {
    typedef uint16_t Halves __attribute__((vector_size(kLanes * 4)));
    return {reinterpret_cast<IntVec>(bytes & 0x00ff00ffu),
            reinterpret_cast<IntVec>(reinterpret_cast<Halves>(bytes) >> 8)};
  }
  SPLITSERVE_INLINE static void accumulate(Sums& sums, const Weights& weights, IntVec first, IntVec second) {
    sums.both += half_products(weights.even, first);
    sums.both += half_products(weights.odd, second);
  }
  SPLITSERVE_INLINE static IntVec total(const Sums& sums) { return sums.both; }
};
#endif

}  // namespace splitserve::SPLITSERVE_ISA

#endif
