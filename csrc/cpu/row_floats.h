// Rows of activations as floats, where bfloat16 is multiplied as such.
#pragma once

#include "cpu/dot_step.h"
#include "cpu/linear.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Neighbours as they are multiplied: where an instruction adds the second product of a pair first, they have
// changed their places.
SPLITSERVE_INLINE Vec in_order(Vec inputs) {
#if defined(__AVX512BF16__)
  return _mm512_permute_ps(inputs, 0xb1);
#else
  return inputs;
#endif
}

// What lies beyond the last input is zero, as far as a register goes.
inline void make_floats(float* floats, const BFloat16* x, int64_t depth) {
  for (int64_t k = 0; k < depth; k += kLanes) store(floats + k, in_order(load_up_to(x + k, depth - k)));
}

// How far rows of floats are apart: those of a tile would be in the same few lines of a cache at a multiple
// of 4 KiB.
inline int64_t float_stride(int64_t depth) {
  constexpr int64_t kLineFloats = 16;
  return (ceil_div(depth, kLineFloats) | 1) * kLineFloats;
}

// The floats of all rows of a call, in the memory of num_inputs * rows * float_stride().
inline RowFloats make_row_floats(const ExpertLinearParams& p, float* floats) {
  const LinearParams& own = p.linear;
  const int64_t rows = p.num_inputs() * own.rows, stride = float_stride(own.depth);
  parallel_for(rows, rows * own.depth, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const BFloat16* const x = static_cast<const BFloat16*>(own.x) + i / own.rows * p.x_expert_stride;
      make_floats(floats + i * stride, x + i % own.rows * own.x_stride, own.depth);
    }
  });
  return {floats, stride};
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
