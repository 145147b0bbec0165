// Products of int8 activations with the weights of int8 dot: four inputs per 32-bit lane, added up in int32,
// which is exact.
#pragma once

#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {

// Four int8 of a row.
SPLITSERVE_INLINE int32_t load_four(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return four;
}

// Weights are unsigned, activations signed.
#if defined(__AVX512VNNI__)
struct Int8Dot {
  using Weights = __m512i;
  using Inputs = __m512i;
  SPLITSERVE_INLINE static Weights load(const char* p) { return _mm512_loadu_si512(p); }
  SPLITSERVE_INLINE static Inputs broadcast(const int8_t* p) { return _mm512_set1_epi32(load_four(p)); }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, Weights weights, Inputs inputs) {
    return reinterpret_cast<IntVec>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), weights, inputs));
  }
};
#else
// Pairs of 16 bits: those of the first and third of the four, and of the others.
struct Int8Dot {
  struct Weights {
    UintVec even, odd;
  };
  struct Inputs {
    int32_t even, odd;
  };
  SPLITSERVE_INLINE static Weights load(const char* p) {
    UintVec bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return {bytes & 0x00ff00ffu, (bytes >> 8) & 0x00ff00ffu};
  }
  SPLITSERVE_INLINE static Inputs broadcast(const int8_t* p) { return {pair(p[0], p[2]), pair(p[1], p[3])}; }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, const Weights& weights, Inputs inputs) {
    return sum + products(weights.even, inputs.even) + products(weights.odd, inputs.odd);
  }

 private:
  SPLITSERVE_INLINE static int32_t pair(int8_t low, int8_t high) {
    return static_cast<int32_t>(static_cast<uint16_t>(low) | static_cast<uint32_t>(high) << 16);
  }
  SPLITSERVE_INLINE static IntVec products(UintVec weights, int32_t inputs) {
#if defined(__AVX512BW__)
    return reinterpret_cast<IntVec>(
        _mm512_madd_epi16(reinterpret_cast<__m512i>(weights), _mm512_set1_epi32(inputs)));
#elif defined(__AVX2__)
    return reinterpret_cast<IntVec>(
        _mm256_madd_epi16(reinterpret_cast<__m256i>(weights), _mm256_set1_epi32(inputs)));
#elif defined(__SSE2__)
    return reinterpret_cast<IntVec>(
        _mm_madd_epi16(reinterpret_cast<__m128i>(weights), _mm_set1_epi32(inputs)));
#else
    const IntVec low = reinterpret_cast<IntVec>(weights & 0xffffu);
    const IntVec high = reinterpret_cast<IntVec>(weights >> 16);
    return low * static_cast<int16_t>(inputs) + high * (inputs >> 16);
#endif
  }
};
#endif

}  // namespace splitserve::SPLITSERVE_ISA
