// Products of int8 activations with the weights of int8 dot: four inputs per 32-bit lane, added up in int32,
// which is exact. Activations lie in memory as Dot::Input.
#pragma once

#include "cpu/byte_products.h"

namespace splitserve::SPLITSERVE_ISA {

// Weights are unsigned, activations signed.
#if defined(__AVX2__)
// By VNNI.
struct ByteInt8Dot {
  using Input = int8_t;
  using Weights = IntVec;
  using Inputs = IntVec;
  SPLITSERVE_INLINE static Weights load(const char* p) {
    Weights weights;
    std::memcpy(&weights, p, sizeof weights);
    return weights;
  }
  SPLITSERVE_INLINE static Inputs broadcast(const int8_t* p) { return broadcast_four(p); }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, Weights weights, Inputs inputs) {
    return add_byte_products(sum, weights, inputs);
  }
};
#else
// 32 bits of a row.
SPLITSERVE_INLINE int32_t load_four(const void* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return four;
}
#endif

#if defined(__AVX512VNNI__)
using Int8Dot = ByteInt8Dot;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
struct Int8Dot {
  using Input = int8_t;
  using Weights = uint8x16_t;
  using Inputs = int8x16_t;
  SPLITSERVE_INLINE static Weights load(const char* p) {
    return vld1q_u8(reinterpret_cast<const uint8_t*>(p));
  }
  SPLITSERVE_INLINE static Inputs broadcast(const int8_t* p) {
    return vreinterpretq_s8_s32(vdupq_n_s32(load_four(p)));
  }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, Weights weights, Inputs inputs) {
    return vusdotq_s32(sum, weights, inputs);
  }
};
#elif defined(__ARM_FEATURE_DOTPROD)
// The instruction multiplies numbers of one kind: weights less 128, and what that takes off their products.
struct Int8Dot {
  using Input = int8_t;
  using Weights = int8x16_t;
  struct Inputs {
    int8x16_t numbers;
    IntVec less;
  };
  SPLITSERVE_INLINE static Weights load(const char* p) {
    const uint8x16_t weights = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
    return vreinterpretq_s8_u8(veorq_u8(weights, vdupq_n_u8(128)));
  }
  SPLITSERVE_INLINE static Inputs broadcast(const int8_t* p) {
    const int8x16_t numbers = vreinterpretq_s8_s32(vdupq_n_s32(load_four(p)));
    return {numbers, vdotq_s32(vdupq_n_s32(0), numbers, vdupq_n_s8(-128))};
  }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, Weights weights, const Inputs& inputs) {
    const IntVec products = vdotq_s32(sum, weights, inputs.numbers);
    return products - inputs.less;
  }
};
#else
// Pairs of 16 bits: those of the first and third of the four, and of the others, two operands. Activations
// lie in memory in this order.
struct Int8Dot {
  using Input = int16_t;
  typedef int16_t Halves __attribute__((vector_size(kLanes * 4)));
  typedef uint16_t UnsignedHalves __attribute__((vector_size(kLanes * 4)));
  struct Weights {
    UnsignedHalves even, odd;
  };
  struct Inputs {
    Halves even, odd;
  };
  SPLITSERVE_INLINE static Weights load(const char* p) { return {operand<0>(p), operand<1>(p)}; }
  SPLITSERVE_INLINE static Inputs broadcast(const int16_t* p) { return {input<0>(p), input<1>(p)}; }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, const Weights& weights, Inputs inputs) {
    return accumulate(accumulate(sum, weights.even, inputs.even), weights.odd, inputs.odd);
  }

  template <int kOperand>
  SPLITSERVE_INLINE static UnsignedHalves operand(const char* p) {
    UnsignedHalves bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return kOperand == 0 ? bytes & 0xff : bytes >> 8;
  }
  template <int kOperand>
  SPLITSERVE_INLINE static Halves input(const int16_t* p) {
#if defined(__AVX2__)
    return reinterpret_cast<Halves>(broadcast_four(p + 2 * kOperand));
#else
    return reinterpret_cast<Halves>(IntVec{} + load_four(p + 2 * kOperand));
#endif
  }
  SPLITSERVE_INLINE static IntVec accumulate(IntVec sum, UnsignedHalves weights, Halves inputs) {
    return in_order(sum + products(weights, inputs));
  }

 private:
  // GCC would first multiply for several steps, which is more than there are registers, and then add.
  SPLITSERVE_INLINE static IntVec in_order(IntVec sum) {
#if defined(__x86_64__)
    __asm__("" : "+v"(sum));
#endif
    return sum;
  }
  SPLITSERVE_INLINE static IntVec products(UnsignedHalves weights, Halves inputs) {
#if defined(__AVX2__)
    return half_products(reinterpret_cast<IntVec>(weights), reinterpret_cast<IntVec>(inputs));
#elif defined(__SSE2__)
    return reinterpret_cast<IntVec>(
        _mm_madd_epi16(reinterpret_cast<__m128i>(weights), reinterpret_cast<__m128i>(inputs)));
#else
    // A weight has 8 bits, so its half has no sign.
    const IntVec left = reinterpret_cast<IntVec>(weights), right = reinterpret_cast<IntVec>(inputs);
    return (left & 0xffff) * ((right << 16) >> 16) + (left >> 16) * (right >> 16);
#endif
  }
};
#endif

}  // namespace splitserve::SPLITSERVE_ISA
