// GELU on vectors, exact and in its tanh form.
#pragma once

#include "cpu/vec_math.h"

namespace splitserve::SPLITSERVE_ISA {

// 1/x for x from 1 on, within a unit in the last place.
SPLITSERVE_INLINE Vec inverse(Vec x) {
#if defined(__AVX512F__)
  return inverse_from_one(x);
#else
  return 1.0f / x;
#endif
}

// x/2 * erfc(-x/sqrt(2)): unlike 1 + erf it loses nothing for negative x. The pointer says for which dtype.
// With a = |x| it is max(x, 0) - a * t * 2^(p(t) - a^2 / (2 ln 2)), where t = 1 / (1 + a / sqrt(8)) and p is
// the Chebyshev fit of Press et al., "Numerical Recipes", section 6.2, in units of log(2) and for half of
// erfc, fractional error below 1.2e-7.
SPLITSERVE_INLINE Vec gelu(Vec x, const float*) {
  constexpr float kCoefficients[] = {0.246517298f,  -1.18611495f, 2.14747446f,  -1.63775315f, 0.402321581f,
                                     -0.268756861f, 0.139630056f, 0.539700617f, 1.44272921f,  -2.82574821f};
  // Beyond it nothing is left of the tail, and infinity would be multiplied with zero.
  const Vec a = min(broadcast(16.0f), as_float(as_uint(x) & 0x7fffffffu));
  const Vec t = inverse(fma(a, broadcast(0.35355339f), broadcast(1.0f)));
  const Vec tail = t * exp2(fma(a * a, broadcast(-0.72134752f), polynomial(kCoefficients, t)));
  return fma(-a, tail, max(Vec{}, x));
}

// 1/x for x from 1 to 8, relative error below 2^-14.
SPLITSERVE_INLINE Vec about_inverse(Vec x) {
#if defined(__AVX512F__)
  return _mm512_rcp14_ps(x);
#else
  return 1.0f / x;
#endif
}

// The same for a result that is rounded to bfloat16: relative error below 2^-12, a 16th of what rounding
// may add. With a = |x| it is max(x, 0) - a * exp(-a^2/2) * r(1 / (1 + 3a/8)), where the polynomial r, fitted
// by iteratively reweighted least squares on [0, 13], is the probability of more than a times exp(a^2/2).
SPLITSERVE_INLINE Vec gelu(Vec x, const BFloat16*) {
  constexpr float kCoefficients[] = {-9.135125e-2f, 2.0185715e-1f, 8.23425e-2f, 1.581202e-1f, 1.4901955e-1f};
  // Beyond it nothing is left of the tail, and infinity would be multiplied with zero.
  const Vec a = min(broadcast(16.0f), as_float(as_uint(x) & 0x7fffffffu));
  const Vec t = about_inverse(fma(a, broadcast(0.375f), broadcast(1.0f)));
  const Vec ratio = polynomial(kCoefficients, t) * t;
  const Vec bell = exp2_to_bfloat16(a * a * -0.72134752f);
  return fma(-a, ratio * bell, max(Vec{}, x));
}

// x/2 * (1 + tanh(u)) written as x * sigmoid(2u).
SPLITSERVE_INLINE Vec gelu_tanh(Vec x) {
  const Vec u = 0.79788456f * (x + 0.044715f * x * x * x);
  return x * sigmoid(u + u);
}

}  // namespace splitserve::SPLITSERVE_ISA
