// exp, log and exponential noise one value at a time, by the polynomials of csrc/cpu/vec_math.h: where a
// device has a fused multiply-add it gets the bits of the CPU's vector units, so equal logits draw equal
// tokens on both.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "common/softmax_state.h"

namespace splitserve {

// Minimax polynomial of Cephes' expf (S. L. Moshier, netlib.org/cephes); 0 below the smallest normal result.
SPLITSERVE_HOST_DEVICE inline float exp_portable(float x) {
  constexpr float kMin = -87.33654f;
  constexpr float kMax = 88.02969f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer part in the low bits
  if (x < kMin) return 0.0f;
  const float clamped = x < kMax ? x : kMax;
  const float n = multiply_add(clamped, 1.44269504f, kRound) - kRound;
  float r = multiply_add(n, -0.693359375f, clamped);
  r = multiply_add(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = multiply_add(p, r, 1.3981999507e-3f);
  p = multiply_add(p, r, 8.3334519073e-3f);
  p = multiply_add(p, r, 4.1665795894e-2f);
  p = multiply_add(p, r, 1.6666665459e-1f);
  p = multiply_add(p, r, 5.0000001201e-1f);
  p = multiply_add(p, multiply(r, r), r) + 1.0f;
  return multiply(p, std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23));
}

// Cephes' logf, for positive normal numbers.
SPLITSERVE_HOST_DEVICE inline float log_portable(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  // Split so that the mantissa m lies in [sqrt(1/2), sqrt(2)).
  const int32_t e = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<uint32_t>(e) << 23)) - 1.0f;
  const float n = static_cast<float>(e);
  float p = 7.0376836292e-2f;
  p = multiply_add(p, m, -1.1514610310e-1f);
  p = multiply_add(p, m, 1.1676998740e-1f);
  p = multiply_add(p, m, -1.2420140846e-1f);
  p = multiply_add(p, m, 1.4249322787e-1f);
  p = multiply_add(p, m, -1.6668057665e-1f);
  p = multiply_add(p, m, 2.0000714765e-1f);
  p = multiply_add(p, m, -2.4999993993e-1f);
  p = multiply_add(p, m, 3.3333331174e-1f);
  const float m2 = multiply(m, m);
  float y = multiply(multiply(p, m), m2);
  y = multiply_add(n, -2.12194440e-4f, y);
  y = multiply_add(m2, -0.5f, y);
  return multiply_add(n, 0.693359375f, m + y);
}

// -log(1 - u) for 32 random bits. u is exact near 0, where the winners are; the quotient repairs the rounding
// of 1 - u.
SPLITSERVE_HOST_DEVICE inline float exponential_noise(uint32_t bits) {
  const float u = multiply(static_cast<float>(bits) + 0.5f, 0x1p-32f);
  const float rest = fmaxf(1.0f - u, 0x1p-25f);
  const float rounded = 1.0f - rest;
  return rounded > 0.0f ? multiply(-log_portable(rest), u / rounded) : u;
}

// Probabilities as integers, so that sums of them do not depend on an order. 2^22 tokens of probability 1
// fit.
inline constexpr float kUnitMass = 0x1p40f;

// exp(x) for x <= 0.
SPLITSERVE_HOST_DEVICE inline uint64_t mass_of(float x) {
  return static_cast<uint64_t>(multiply(exp_portable(x), kUnitMass));
}

}  // namespace splitserve
