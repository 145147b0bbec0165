// Products of activations as words with weights as unsigned bytes: four inputs per 32-bit lane, added up in
// int32, which is exact for up to 128 inputs.
//
// Of the words of four inputs there are two times 32 bits, `first` and `second`: either their upper and lower
// bytes, both signed, or (kIsPairs) the words of the first and third of the four, and of the others.
#pragma once

#include "cpu/vec.h"

#if (defined(__AVX512VNNI__) && !defined(__AMX_BF16__)) || (defined(__AVX2__) && !defined(__AVX512F__))
#define SPLITSERVE_MULTIPLIES_WORDS 1

namespace splitserve::SPLITSERVE_ISA {

SPLITSERVE_INLINE IntVec broadcast_lane(const void* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
#if defined(__AVX512F__)
  return reinterpret_cast<IntVec>(_mm512_set1_epi32(four));
#else
  return reinterpret_cast<IntVec>(_mm256_set1_epi32(four));
#endif
}

// By an instruction that adds four products of bytes; Add has it.
template <typename Add>
struct ByteDot {
  static constexpr bool kIsPairs = false;
  using Weights = UintVec;
  struct Sums {
    IntVec high, low;
  };
  // Of no products, but `less`.
  SPLITSERVE_INLINE static Sums first(IntVec less) { return {IntVec{}, less}; }
  SPLITSERVE_INLINE static Weights weights(UintVec bytes) { return bytes; }
  SPLITSERVE_INLINE static void accumulate(Sums& sums, Weights weights, IntVec first, IntVec second) {
    sums.high = Add::add(sums.high, weights, first);
    sums.low = Add::add(sums.low, weights, second);
  }
  SPLITSERVE_INLINE static IntVec total(const Sums& sums) { return (sums.high << 8) + sums.low; }
};

#if defined(__AVX512VNNI__)
struct AddBytes {
  SPLITSERVE_INLINE static IntVec add(IntVec sum, UintVec weights, IntVec inputs) {
    return reinterpret_cast<IntVec>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                        reinterpret_cast<__m512i>(weights),
                                                        reinterpret_cast<__m512i>(inputs)));
  }
};
using WordDot = ByteDot<AddBytes>;
#else
// By AVX-VNNI, which a processor may have beside AVX2: only where uses_avx_vnni(). Compiled for AVX2, a
// function cannot use the compiler's name for the instruction.
struct AddBytes {
  SPLITSERVE_INLINE static IntVec add(IntVec sum, UintVec weights, IntVec inputs) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(inputs));
    return sum;
  }
};
using VexWordDot = ByteDot<AddBytes>;

struct WordDot {
  static constexpr bool kIsPairs = true;
  struct Weights {
    UintVec even, odd;
  };
  struct Sums {
    IntVec both;
  };
  SPLITSERVE_INLINE static Sums first(IntVec less) { return {less}; }
  SPLITSERVE_INLINE static Weights weights(UintVec bytes) {
    return {bytes & 0x00ff00ffu,
            reinterpret_cast<UintVec>(_mm256_srli_epi16(reinterpret_cast<__m256i>(bytes), 8))};
  }
  SPLITSERVE_INLINE static void accumulate(Sums& sums, const Weights& weights, IntVec first, IntVec second) {
    sums.both += products(weights.even, first);
    sums.both += products(weights.odd, second);
  }
  SPLITSERVE_INLINE static IntVec total(const Sums& sums) { return sums.both; }

 private:
  SPLITSERVE_INLINE static IntVec products(UintVec weights, IntVec words) {
    return reinterpret_cast<IntVec>(
        _mm256_madd_epi16(reinterpret_cast<__m256i>(weights), reinterpret_cast<__m256i>(words)));
  }
};
#endif

}  // namespace splitserve::SPLITSERVE_ISA

#endif
