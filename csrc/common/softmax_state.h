// The running state of a softmax over parts that are merged in a fixed order; logarithms are to the base 2.
//
// A part that saw nothing is {-inf, 0} with values of 0, and merging it changes no bit of the total. Every
// multiply-add names its rounding, so that two kernels that merge the same parts get the same bits.
#pragma once

#include <cmath>

#include "common/host_device.h"

namespace splitserve {

struct SoftmaxState {
  float max = -INFINITY;  // of the scores
  float sum = 0.0f;       // of exp2(score - max)
};

// What a merge leaves of the total's values, and what it takes of the part's.
struct MergeFactors {
  float keep, take;
};

SPLITSERVE_HOST_DEVICE inline float exp2_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

// The subtrahend under exp2: never infinite where nothing was seen, since inf - inf is not a number.
SPLITSERVE_HOST_DEVICE inline float softmax_base(float max) { return max == -INFINITY ? 0.0f : max; }

SPLITSERVE_HOST_DEVICE inline float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

SPLITSERVE_HOST_DEVICE inline float multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// Moves the total's maximum up to the part's and adds the part's sum.
SPLITSERVE_HOST_DEVICE inline MergeFactors merge_into(SoftmaxState* total, const SoftmaxState& part) {
  const float max = fmaxf(total->max, part.max), base = softmax_base(max);
  const MergeFactors factors{exp2_fast(total->max - base), exp2_fast(part.max - base)};
  total->max = max;
  total->sum = multiply_add(total->sum, factors.keep, multiply(part.sum, factors.take));
  return factors;
}

SPLITSERVE_HOST_DEVICE inline float merged_value(float total, float part, const MergeFactors& factors) {
  return multiply_add(total, factors.keep, multiply(part, factors.take));
}

}  // namespace splitserve
