// Conversions between float and the 16-bit types, rounding to the nearest even: one instruction on a GPU,
// integer arithmetic with the same results elsewhere. A NaN stays a NaN, its payload is not kept.
#pragma once

#include <bit>
#include <concepts>

#include "common/bfloat16.h"
#include "common/host_device.h"

namespace splitserve {

// IEEE binary16 as a storage type.
struct Float16 {
  uint16_t bits;
};
static_assert(sizeof(Float16) == 2);

SPLITSERVE_HOST_DEVICE inline float to_float(float x) { return x; }

SPLITSERVE_HOST_DEVICE inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

SPLITSERVE_HOST_DEVICE inline float to_float(Float16 x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = x.bits >> 10 & 0x1fu, fraction = x.bits & 0x3ffu;
  // Subnormals: fraction * 2^-24, exact in a float.
  if (exponent == 0) {
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
  }
  const uint32_t biased = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | biased << 23 | fraction << 13);
#endif
}

// `to<T>(x)` rounds a float to T.
template <typename T>
SPLITSERVE_HOST_DEVICE inline T to(float x);

template <>
SPLITSERVE_HOST_DEVICE inline float to<float>(float x) {
  return x;
}

template <>
SPLITSERVE_HOST_DEVICE inline BFloat16 to<BFloat16>(float x) {
#if defined(__CUDA_ARCH__)
  BFloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
#else
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
#endif
}

template <>
SPLITSERVE_HOST_DEVICE inline Float16 to<Float16>(float x) {
#if defined(__CUDA_ARCH__)
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
#else
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  // 65520 and above round to infinity.
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 lets the float unit round to multiples of 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u;
  return {static_cast<uint16_t>(sign | rounded >> 13)};
#endif
}

// Two floats in one word, `low` in its lower half.
template <typename T>
SPLITSERVE_HOST_DEVICE inline uint32_t pack_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t word;
  if constexpr (std::same_as<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return to<T>(low).bits | static_cast<uint32_t>(to<T>(high).bits) << 16;
#endif
}

}  // namespace splitserve
