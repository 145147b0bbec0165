// exp, log and relatives on vectors. Relative error of exp and log below 2 units in the last place.
#pragma once

#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {

// Coefficients: minimax polynomial of Cephes' expf on [-ln2/2, ln2/2] (S. L. Moshier, netlib.org/cephes).
// Below the smallest normal result it returns exactly 0, so that masked scores (-inf) weigh nothing. NaN
// stays NaN.
SPLITSERVE_INLINE Vec exp(Vec x) {
  constexpr float kMin = -87.33654f;
  constexpr float kMax = 88.02969f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer part in the low bits
  const Vec clamped = max(broadcast(kMin), min(broadcast(kMax), x));
  const Vec n = fma(clamped, broadcast(1.44269504f), broadcast(kRound)) - kRound;
  Vec r = fma(n, broadcast(-0.693359375f), clamped);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  const IntVec exponent = __builtin_convertvector(n, IntVec) + 127;
  const Vec scale = as_float(reinterpret_cast<UintVec>(exponent) << 23);
  const Vec result = p * scale;
  return x < broadcast(kMin) ? Vec{} : result;
}

// Coefficients come highest power first.
template <int kCount>
SPLITSERVE_INLINE Vec polynomial(const float (&coefficients)[kCount], Vec x) {
  Vec p = broadcast(coefficients[0]);
#pragma GCC unroll 8
  for (int i = 1; i < kCount; ++i) p = fma(p, x, broadcast(coefficients[i]));
  return p;
}

// 2^x of a polynomial for 2^r on [-1/2, 1/2].
template <int kCount>
SPLITSERVE_INLINE Vec exp2_by(const float (&coefficients)[kCount], Vec x) {
#if defined(__AVX512F__)
  const Vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
  const Vec r = x - n;
#else
  constexpr float kMin = -125.0f;
  constexpr float kRound = 12582912.0f;  // as in exp()
  const Vec clamped = max(broadcast(kMin), x);
  const Vec shifted = clamped + kRound;
  const Vec r = clamped - (shifted - kRound);
#endif
  const Vec p = polynomial(coefficients, r);
#if defined(__AVX512F__)
  // Where x is -inf, r and p are NaN; of NaN and -inf the instruction makes 0.
  return _mm512_scalef_ps(p, n);
#else
  // The integer part is in the low bits of `shifted`; multiplying keeps a NaN in p one.
  const Vec result = p * as_float((as_uint(shifted) << 23) + 0x3f800000u);
  return x < broadcast(kMin) ? Vec{} : result;
#endif
}

// Of 2^r: 1 + r times the minimax polynomial of (2^r - 1) / r on [-1/2, 1/2], found by iteratively reweighted
// least squares.
inline constexpr float kExp2Coefficients[] = {1.326472731307149e-3f, 9.671512991189957e-3f,
                                              5.550733581185341e-2f, 2.4022242426872253e-1f,
                                              6.931470036506653e-1f, 1.0f};

// 2^x for x up to 127, relative error below 3 units in the last place; exactly 0 for -inf and all that is far
// below the smallest float, so that masked scores weigh nothing. NaN stays NaN.
SPLITSERVE_INLINE Vec exp2(Vec x) { return exp2_by(kExp2Coefficients, x); }

// The same for a result that is rounded to bfloat16: relative error below 7.5e-5, which is a 26th of the
// smallest that rounding may add. Minimax polynomial of 2^r.
SPLITSERVE_INLINE Vec exp2_to_bfloat16(Vec x) {
  constexpr float kCoefficients[] = {5.5171669541413e-2f, 2.4261112543768e-1f, 6.9326098565283e-1f,
                                     9.9992807334633e-1f};
  return exp2_by(kCoefficients, x);
}

SPLITSERVE_INLINE float exp(float x) { return exp(broadcast(x))[0]; }

// For positive normal numbers. Coefficients: Cephes' logf.
SPLITSERVE_INLINE Vec log(Vec x) {
  const UintVec bits = as_uint(x);
  // Split so that the mantissa m lies in [sqrt(1/2), sqrt(2)).
  const IntVec e = reinterpret_cast<IntVec>(bits - 0x3f3504f3u) >> 23;
  const Vec m = as_float(bits - reinterpret_cast<UintVec>(e << 23)) - 1.0f;
  const Vec n = __builtin_convertvector(e, Vec);
  Vec p = broadcast(7.0376836292e-2f);
  p = fma(p, m, broadcast(-1.1514610310e-1f));
  p = fma(p, m, broadcast(1.1676998740e-1f));
  p = fma(p, m, broadcast(-1.2420140846e-1f));
  p = fma(p, m, broadcast(1.4249322787e-1f));
  p = fma(p, m, broadcast(-1.6668057665e-1f));
  p = fma(p, m, broadcast(2.0000714765e-1f));
  p = fma(p, m, broadcast(-2.4999993993e-1f));
  p = fma(p, m, broadcast(3.3333331174e-1f));
  const Vec m2 = m * m;
  Vec y = p * m * m2;
  y = fma(n, broadcast(-2.12194440e-4f), y);
  y = fma(m2, broadcast(-0.5f), y);
  return fma(n, broadcast(0.693359375f), m + y);
}

SPLITSERVE_INLINE float log(float x) { return log(broadcast(x))[0]; }

#if defined(__AVX512F__)
// 1 / x of x >= 1, infinity included, by one step of Newton's method: within a unit in the last place, in a
// quarter of the time of a division. NaN stays NaN.
SPLITSERVE_INLINE Vec inverse_from_one(Vec x) {
  const Vec near = _mm512_rcp14_ps(x);
  return fma(near, fma(-min(broadcast(0x1p126f), x), near, broadcast(1.0f)), near);
}
#endif

// In about half the instructions of exp() where the hardware scales by powers of two; what is too large for a
// float becomes infinite.
SPLITSERVE_INLINE Vec sigmoid(Vec x) {
#if defined(__AVX512F__)
  // -log2(e), and what its first part lacks.
  constexpr float kHigh = -1.44269504f, kLow = -1.92596299e-8f;
  const Vec n = _mm512_roundscale_ps(x * kHigh, _MM_FROUND_TO_NEAREST_INT);
  const Vec r = fma(x, broadcast(kLow), fma(x, broadcast(kHigh), -n));
  return inverse_from_one(1.0f + _mm512_scalef_ps(polynomial(kExp2Coefficients, r), n));
#else
  return 1.0f / (1.0f + exp(-x));
#endif
}

// Near 0, where 1 - 2 / (e^2x + 1) loses digits that a cap of scores then multiplies, the continued fraction
// x / (1 + x^2 / (3 + x^2 / ...)) as far as 9, which is exact to 1e-9 there.
SPLITSERVE_INLINE Vec tanh(Vec x) {
  const Vec square = x * x;
  const Vec near = x * (945.0f + square * (105.0f + square)) / (945.0f + square * (420.0f + 15.0f * square));
  return square < broadcast(0.4f) ? near : 1.0f - 2.0f / (exp(x + x) + 1.0f);
}

}  // namespace splitserve::SPLITSERVE_ISA
