// A pair of inputs of a panel of int8 weights as bfloat16 in memory.
#pragma once

#include "cpu/weight_formats.h"

#if defined(__AVX512BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// By look-ups of 64 bytes, one operation each. From 64 to 127 the exponent is always the same, so the lower
// byte is twice the magnitude. Registers get every other four outputs.
class Int8Unpacker {
 public:
  SPLITSERVE_INLINE Int8Unpacker()
      : low_bytes(kept(_mm512_load_si512(kMagnitudeBytes.low))),
        high_bytes(kept(_mm512_load_si512(kMagnitudeBytes.high))),
        largest_high(kept(_mm512_set1_epi8(0x42))),
        signs(kept(_mm512_set1_epi8(-128))),
        high_of_least(kept(_mm512_set1_epi8(kHighOfLeast))) {}

  SPLITSERVE_INLINE void unpack(const char* step, void* out) const {
    constexpr int kFirstOrBothOthers = 0xf8;
    const __m512i codes = _mm512_loadu_si512(step);
    const __m512i magnitudes = _mm512_abs_epi8(codes), twice = _mm512_add_epi8(magnitudes, magnitudes);
    const __mmask64 is_below = ~_mm512_movepi8_mask(twice);
    const __m512i low = _mm512_mask_permutexvar_epi8(twice, is_below, magnitudes, low_bytes);
    const __m512i upper = _mm512_mask_permutexvar_epi8(largest_high, is_below, magnitudes, high_bytes);
    // -128, whose magnitude has the place of 0 in a table, and the same lower byte, is the only code whose
    // magnitude has the highest bit.
    const __m512i high =
        _mm512_mask_mov_epi8(_mm512_ternarylogic_epi32(upper, codes, signs, kFirstOrBothOthers),
                             _mm512_movepi8_mask(magnitudes), high_of_least);
    char* const to = static_cast<char*>(out);
    _mm512_store_si512(to, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(to + sizeof low, _mm512_unpackhi_epi8(low, high));
  }

 private:
  // In a register: GCC would make constants of bytes anew for each use, in the unit that looks up.
  SPLITSERVE_INLINE static __m512i kept(__m512i constant) {
    asm("" : "+v"(constant));
    return constant;
  }

  __m512i low_bytes, high_bytes, largest_high, signs, high_of_least;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
