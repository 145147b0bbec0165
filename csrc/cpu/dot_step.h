// One step of a dot product: what a register of operands is, and how it is added to a register of sums.
//
// A lane holds kPair neighbours of the dimension that is summed over, so a bfloat16 lane is 32 bits wide like
// a float one. Under linear and attention alike each lane of the sums is a result of its own.
//
// Shared is what attention keeps of a side that is broadcast to many registers: floats where the step is made
// of them, which are then converted once.
#pragma once

#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {

template <typename T>
struct DotStep;

template <>
struct DotStep<float> {
  using Operand = Vec;
  using Shared = float;
  static constexpr int kPair = 1;
  static constexpr int kSize = kLanes;
  SPLITSERVE_INLINE static Operand load(const float* p) { return SPLITSERVE_ISA::load(p); }
  SPLITSERVE_INLINE static Operand broadcast(const float* p) { return SPLITSERVE_ISA::broadcast(*p); }
  SPLITSERVE_INLINE static Vec accumulate(Vec sum, Operand a, Operand b) { return fma(a, b, sum); }
};

SPLITSERVE_INLINE uint32_t load_pair(const BFloat16* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return pair;
}

#if defined(__AVX512BF16__)
template <>
struct DotStep<BFloat16> {
  using Operand = __m512bh;
  using Shared = BFloat16;
  static constexpr bool kIsFloat = false;
  static constexpr int kPair = 2;
  static constexpr int kSize = 2 * kLanes;
  SPLITSERVE_INLINE static Operand load(const BFloat16* p) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
  }
  SPLITSERVE_INLINE static Operand broadcast(const BFloat16* p) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(load_pair(p))));
  }
  SPLITSERVE_INLINE static Vec accumulate(Vec sum, Operand a, Operand b) {
    return _mm512_dpbf16_ps(sum, a, b);
  }
};
#elif defined(SPLITSERVE_HAS_BF16_DOT)
// The sums of the instruction are rounded to odd, and it takes denormals as zero.
template <>
struct DotStep<BFloat16> {
  using Operand = bfloat16x8_t;
  using Shared = BFloat16;
  static constexpr bool kIsFloat = false;
  static constexpr int kPair = 2;
  static constexpr int kSize = 2 * kLanes;
  SPLITSERVE_INLINE static Operand load(const BFloat16* p) {
    Operand pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return pairs;
  }
  SPLITSERVE_INLINE static Operand broadcast(const BFloat16* p) {
    return vreinterpretq_bf16_u32(vdupq_n_u32(load_pair(p)));
  }
  // Of floats that are bfloat16.
  SPLITSERVE_INLINE static Operand join(Vec even, Vec odd) {
    return vreinterpretq_bf16_u32(vsriq_n_u32(as_uint(odd), as_uint(even), 16));
  }
  SPLITSERVE_INLINE static Vec accumulate(Vec sum, Operand a, Operand b) { return vbfdotq_f32(sum, a, b); }
};
#else
// Each 32-bit lane holds two neighbours: the upper half is a float but for its low bits, the lower one a
// shift away.
template <>
struct DotStep<BFloat16> {
  struct Operand {
    Vec even, odd;
  };
  using Shared = float;
  static constexpr bool kIsFloat = true;
  static constexpr int kPair = 2;
  static constexpr int kSize = 2 * kLanes;
  SPLITSERVE_INLINE static Operand split(UintVec pairs) {
    return {first_of(pairs), as_float(pairs & 0xffff0000u)};
  }
  SPLITSERVE_INLINE static Operand load(const BFloat16* p) {
    UintVec pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return split(pairs);
  }
  SPLITSERVE_INLINE static Operand broadcast(const BFloat16* p) { return split(UintVec{} + load_pair(p)); }
  SPLITSERVE_INLINE static Operand broadcast(const float* p) {
    return {SPLITSERVE_ISA::broadcast(p[0]), SPLITSERVE_ISA::broadcast(p[1])};
  }
  SPLITSERVE_INLINE static Operand join(Vec even, Vec odd) { return {even, odd}; }
  SPLITSERVE_INLINE static Vec accumulate(Vec sum, Operand a, Operand b) {
    return fma(a.odd, b.odd, fma(a.even, b.even, sum));
  }

 private:
  SPLITSERVE_INLINE static Vec first_of(UintVec pairs) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    // A shift would take one of the two units that multiply.
    const __m128i order = _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
    return reinterpret_cast<Vec>(
        _mm256_shuffle_epi8(reinterpret_cast<__m256i>(pairs), _mm256_broadcastsi128_si256(order)));
#else
    return as_float(pairs << 16);
#endif
  }
};
#endif

template <typename T>
using Shared = typename DotStep<T>::Shared;

// Copies a row of n elements as it is broadcast.
template <typename T>
SPLITSERVE_INLINE void copy_shared(Shared<T>* to, const T* from, int64_t n) {
  if constexpr (sizeof(Shared<T>) == sizeof(T)) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else {
    for (int64_t i = 0; i < n; i += kLanes) store_up_to(to + i, load_up_to(from + i, n - i), n - i);
  }
}

// The last n < kSize elements, followed by zeros.
template <typename T>
SPLITSERVE_INLINE typename DotStep<T>::Operand load_end(const T* p, int64_t n) {
  T buffer[DotStep<T>::kSize] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return DotStep<T>::load(buffer);
}

// The first kPair of the last n elements of a row, zeros for what is not there, in every lane.
template <typename T>
SPLITSERVE_INLINE typename DotStep<T>::Operand broadcast_end(const T* p, int64_t n) {
  T buffer[DotStep<T>::kPair] = {};
  for (int64_t i = 0; i < n && i < DotStep<T>::kPair; ++i) buffer[i] = p[i];
  return DotStep<T>::broadcast(buffer);
}

}  // namespace splitserve::SPLITSERVE_ISA
