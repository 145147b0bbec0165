// The end of a row's softmax: its sum, and in it the sink of the query head, a score that has no value.
#pragma once

#include <cuda_runtime.h>

#include "common/half.h"
#include "common/softmax_state.h"
#include "cuda/attention.h"

namespace splitserve::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

// The score as the row's scores are, to the base 2; -inf for a head without a sink, which changes no bit.
template <typename T>
__device__ inline float sink_of(const AttentionParams& p, int head) {
  if (p.sinks == nullptr) return -INFINITY;
  return multiply(to_float(static_cast<const T*>(p.sinks)[head]), kLog2e);
}

// What the values of all segments together are multiplied with.
__device__ inline float final_factor(const SoftmaxState& total, float sink) {
  const float base = softmax_base(fmaxf(total.max, sink)), keep = exp2_fast(total.max - base);
  return keep / multiply_add(total.sum, keep, exp2_fast(sink - base));
}

}  // namespace splitserve::cuda
