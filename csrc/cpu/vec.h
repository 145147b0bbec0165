// One vector register of floats, for whichever instruction set the file is compiled for.
//
// Everything lives in the namespace of that instruction set, and kernel files use no standard containers or
// algorithms: an inline function shared between namespaces could be linked from the copy built for a newer
// CPU.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/bfloat16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace splitserve::SPLITSERVE_ISA {

// Whether pairs of bfloat16 are multiplied by an instruction.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define SPLITSERVE_HAS_BF16_DOT 1
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kVecRegisters = 32;
#else
inline constexpr int kVecRegisters = 16;
#endif
#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UintVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));
typedef uint8_t ByteVec __attribute__((vector_size(kLanes)));

#define SPLITSERVE_INLINE [[gnu::always_inline]] inline

#if defined(__AVX512F__)
SPLITSERVE_INLINE Vec broadcast(float x) { return _mm512_set1_ps(x); }
#elif defined(__AVX2__)
SPLITSERVE_INLINE Vec broadcast(float x) { return _mm256_set1_ps(x); }
#else
SPLITSERVE_INLINE Vec broadcast(float x) { return Vec{} + x; }
#endif
SPLITSERVE_INLINE UintVec as_uint(Vec x) { return reinterpret_cast<UintVec>(x); }
SPLITSERVE_INLINE Vec as_float(UintVec x) { return reinterpret_cast<Vec>(x); }

SPLITSERVE_INLINE IntVec lane_ids() {
  IntVec ids;
  for (int i = 0; i < kLanes; ++i) ids[i] = i;
  return ids;
}

// Where the hardware has it, one rounding; elsewhere two. Either way the same for every element.
SPLITSERVE_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// max(a, b) and min(a, b) return b when either is NaN.
SPLITSERVE_INLINE Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

SPLITSERVE_INLINE Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

// Bit i tells whether lane i of a comparison's result is set.
SPLITSERVE_INLINE uint32_t lane_bits(IntVec mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= (static_cast<uint32_t>(mask[i]) & 1u) << i;
  return bits;
#endif
}

// True when any lane of a comparison's result is set.
SPLITSERVE_INLINE bool any(IntVec mask) { return lane_bits(mask) != 0; }

// True when any lane is above the limit; NaN is not.
SPLITSERVE_INLINE bool any_above(Vec x, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(x, broadcast(limit), _CMP_GT_OQ) != 0;
#else
  return any(x > broadcast(limit));
#endif
}

SPLITSERVE_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Exact. GCC makes four instructions of what is one here.
SPLITSERVE_INLINE Vec from_bfloat16(HalfVec half) {
#if defined(__AVX512F__)
  return as_float(reinterpret_cast<UintVec>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(half))) << 16);
#elif defined(__AVX2__)
  return as_float(reinterpret_cast<UintVec>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half))) << 16);
#else
  return as_float(__builtin_convertvector(half, UintVec) << 16);
#endif
}

SPLITSERVE_INLINE Vec load(const BFloat16* p) {
  HalfVec half;
  std::memcpy(&half, p, sizeof half);
  return from_bfloat16(half);
}

// Bytes in 32 bits each, which GCC converts one by one.
SPLITSERVE_INLINE UintVec load_wide(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<UintVec>(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  return reinterpret_cast<UintVec>(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  ByteVec bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, UintVec);
#endif
}
SPLITSERVE_INLINE IntVec load_wide(const int8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVec>(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  return reinterpret_cast<IntVec>(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  return reinterpret_cast<IntVec>(load_wide(reinterpret_cast<const uint8_t*>(p)) << 24) >> 24;
#endif
}

SPLITSERVE_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

#if !defined(SPLITSERVE_HAS_BF16_DOT)
// A float's bits, of which the upper half is the bfloat16 nearest to it, ties to even; a NaN's is a NaN.
SPLITSERVE_INLINE UintVec rounded_bits(Vec v) {
  const UintVec bits = as_uint(v);
  const UintVec rounded = bits + ((bits >> 16) & 1u) + 0x7fffu;
#if defined(__AVX512F__)
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return reinterpret_cast<UintVec>(_mm512_mask_or_epi32(reinterpret_cast<__m512i>(rounded), is_nan,
                                                        reinterpret_cast<__m512i>(bits),
                                                        _mm512_set1_epi32(0x400000)));
#else
  return v == v ? rounded : bits | 0x400000u;
#endif
}
#endif

// Round to nearest even; NaN stays NaN. AVX-512's instruction takes denormals, which are below 1.2e-38, as
// zero.
SPLITSERVE_INLINE HalfVec to_bfloat16(Vec v) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<HalfVec>(_mm512_cvtneps_pbh(v));
#elif defined(SPLITSERVE_HAS_BF16_DOT)
  return reinterpret_cast<HalfVec>(vcvt_bf16_f32(v));
#else
  return __builtin_convertvector(rounded_bits(v) >> 16, HalfVec);
#endif
}

// v as it reads back after it was stored as a T.
template <typename T>
SPLITSERVE_INLINE Vec rounded_to(Vec v) {
  if constexpr (sizeof(T) == 4) {
    return v;
  } else {
#if defined(SPLITSERVE_HAS_BF16_DOT)
    return from_bfloat16(to_bfloat16(v));
#else
    return as_float(rounded_bits(v) & 0xffff0000u);
#endif
  }
}

SPLITSERVE_INLINE void store(BFloat16* p, Vec v) {
  const HalfVec half = to_bfloat16(v);
  std::memcpy(p, &half, sizeof half);
}

// The first n < kLanes elements; the other lanes hold `fill`.
template <typename T>
SPLITSERVE_INLINE Vec load_partial(const T* p, int n, T fill = T{}) {
  T buffer[kLanes];
  for (int i = 0; i < kLanes; ++i) buffer[i] = fill;
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}

template <typename T>
SPLITSERVE_INLINE void store_partial(T* p, Vec v, int n) {
  T buffer[kLanes];
  store(buffer, v);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

// Loads min(n, kLanes) elements: the form a loop over a row uses.
template <typename T>
SPLITSERVE_INLINE Vec load_up_to(const T* p, int64_t n) {
  return n >= kLanes ? load(p) : load_partial(p, static_cast<int>(n));
}

template <typename T>
SPLITSERVE_INLINE void store_up_to(T* p, Vec v, int64_t n) {
  if (n >= kLanes) {
    store(p, v);
  } else {
    store_partial(p, v, static_cast<int>(n));
  }
}

#if defined(__AVX512F__)
typedef __m128 Quad;
#else
typedef float Quad __attribute__((vector_size(16)));
#endif

// Sums of the lanes of four vectors at once, {sum(a), sum(b), sum(c), sum(d)}. Within 128 bits
// (x0+x2)+(x1+x3), then upper halves onto lower ones: the one order in which this library adds lanes.
SPLITSERVE_INLINE Quad sum_lanes(Vec a, Vec b, Vec c, Vec d) {
#if defined(__AVX512F__)
  const __m512 ab = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
  const __m512 cd = _mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d);
  const __m512 sums = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))) +
                      _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
  const __m256 half = _mm512_castps512_ps256(sums) + _mm512_extractf32x8_ps(sums, 1);
  return _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
#elif defined(__AVX2__)
  const __m256 ab = _mm256_unpacklo_ps(a, b) + _mm256_unpackhi_ps(a, b);
  const __m256 cd = _mm256_unpacklo_ps(c, d) + _mm256_unpackhi_ps(c, d);
  const __m256 sums = _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))) +
                      _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd)));
  return _mm256_castps256_ps128(sums) + _mm256_extractf128_ps(sums, 1);
#else
  const Quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
#endif
}

SPLITSERVE_INLINE float sum_lanes(Vec v) { return sum_lanes(v, v, v, v)[0]; }

// NaN if any lane is NaN and no later lane is larger than it by the rule of max(); callers check NaN
// themselves.
SPLITSERVE_INLINE float max_lanes(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(v);
#endif
  float result = v[0];
  for (int i = 1; i < kLanes; ++i) result = result > v[i] ? result : v[i];
  return result;
}

}  // namespace splitserve::SPLITSERVE_ISA
