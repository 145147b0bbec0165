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

// The floats of all rows of a call.
class FloatsOfRows {
 public:
  explicit FloatsOfRows(const ExpertLinearParams& params)
      : p(params), rows(params.num_inputs() * params.linear.rows) {}

  int64_t size() const { return rows * stride; }

  // They take the memory of so many.
  RowFloats make(float* floats) const {
    const LinearParams& own = p.linear;
    parallel_for(rows, rows * own.depth, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const BFloat16* const x = static_cast<const BFloat16*>(own.x) + i / own.rows * p.x_expert_stride;
        make_floats(floats + i * stride, x + i % own.rows * own.x_stride, own.depth);
      }
    });
    return {floats, stride};
  }

 private:
  static constexpr int64_t kLineFloats = 16;

  const ExpertLinearParams& p;
  const int64_t rows;
  // Rows are not a multiple of 4 KiB apart: those of a tile would be in the same few lines of a cache.
  const int64_t stride = (ceil_div(p.linear.depth, kLineFloats) | 1) * kLineFloats;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
