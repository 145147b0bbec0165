// Products of integers of 8 and 16 bits that are added up in 32 bits, by instructions of x86.
#pragma once

#include "cpu/vec.h"

#if defined(__AVX2__)

#if !defined(__AVX512VNNI__)
// A processor may have add_byte_products() and add_half_products(), or not: only where uses_vnni().
#define SPLITSERVE_MAY_USE_VNNI 1
#endif

namespace splitserve::SPLITSERVE_ISA {

// 32 bits in all lanes.
SPLITSERVE_INLINE IntVec broadcast_four(const void* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
#if defined(__AVX512F__)
  return reinterpret_cast<IntVec>(_mm512_set1_epi32(four));
#else
  return reinterpret_cast<IntVec>(_mm256_set1_epi32(four));
#endif
}

// Four products per lane of unsigned with signed bytes. Where the instruction set is not said to have it, a
// function cannot use the compiler's name for the instruction.
SPLITSERVE_INLINE IntVec add_byte_products(IntVec sum, IntVec bytes, IntVec signed_bytes) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<IntVec>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                      reinterpret_cast<__m512i>(bytes),
                                                      reinterpret_cast<__m512i>(signed_bytes)));
#elif defined(__AVX512F__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
  return sum;
#else
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(bytes), "x"(signed_bytes));
  return sum;
#endif
}

// Two products per lane of signed halves, likewise.
SPLITSERVE_INLINE IntVec add_half_products(IntVec sum, IntVec a, IntVec b) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<IntVec>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX512F__)
  __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
#endif
}

// Two sums per lane, of 16 bits, of two products of unsigned with signed bytes, which fit them.
SPLITSERVE_INLINE IntVec byte_pair_products(IntVec bytes, IntVec signed_bytes) {
#if defined(__AVX512BW__)
  return reinterpret_cast<IntVec>(
      _mm512_maddubs_epi16(reinterpret_cast<__m512i>(bytes), reinterpret_cast<__m512i>(signed_bytes)));
#else
  return reinterpret_cast<IntVec>(
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(bytes), reinterpret_cast<__m256i>(signed_bytes)));
#endif
}

// Two products per lane of signed halves, added up.
SPLITSERVE_INLINE IntVec half_products(IntVec a, IntVec b) {
#if defined(__AVX512BW__)
  return reinterpret_cast<IntVec>(
      _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#else
  return reinterpret_cast<IntVec>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#endif
}

}  // namespace splitserve::SPLITSERVE_ISA

#endif
