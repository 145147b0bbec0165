// A pair of inputs of a panel of int8 weights as bfloat16 in memory.
#pragma once

#include "cpu/weight_formats.h"

#if defined(__AVX512BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// As Int8Weights::load, by look-ups of 64 bytes, which Intel's processors make in one operation instead of
// three. From 64 to 127 the exponent is always the same, so the lower byte is twice the magnitude.
SPLITSERVE_INLINE void unpack_int8(const char* step, void* out) {
  constexpr int kUpperByte = 0x42;
  const __m512i codes = _mm512_loadu_si512(step);
  const __m512i magnitudes = _mm512_abs_epi8(codes), twice = _mm512_add_epi8(magnitudes, magnitudes);
  const __mmask64 is_below = ~_mm512_movepi8_mask(twice);
  const __m512i low =
      _mm512_mask_permutexvar_epi8(twice, is_below, magnitudes, _mm512_load_si512(kMagnitudeBytes.low));
  const __m512i upper = _mm512_mask_permutexvar_epi8(_mm512_set1_epi8(kUpperByte), is_below, magnitudes,
                                                     _mm512_load_si512(kMagnitudeBytes.high));
  const __m512i high = with_signs(upper, codes, magnitudes);
  char* const to = static_cast<char*>(out);
  _mm512_store_si512(to, _mm512_unpacklo_epi8(low, high));
  _mm512_store_si512(to + sizeof low, _mm512_unpackhi_epi8(low, high));
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
