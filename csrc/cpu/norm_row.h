// Loops over the elements of a row, and sums, in an order that depends on the row's length alone.
#pragma once

#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {

// Sum over a row of term(i, n), where n is the number of elements at i, kLanes if there are as many or more,
// spread over the lanes of a register. Four running sums hide the latency of the addition.
template <typename Term>
SPLITSERVE_INLINE Vec sum_terms(int64_t size, const Term& term) {
  Vec sum0{}, sum1{}, sum2{}, sum3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    // A constant, so that whole registers are loaded without a look at what is left.
    sum0 = sum0 + term(i, kLanes);
    sum1 = sum1 + term(i + kLanes, kLanes);
    sum2 = sum2 + term(i + 2 * kLanes, kLanes);
    sum3 = sum3 + term(i + 3 * kLanes, kLanes);
  }
  for (; i < size; i += kLanes) sum0 = sum0 + term(i, size - i);
  return (sum0 + sum1) + (sum2 + sum3);
}

// Calls fn(i, n) for the parts of a row, as above.
template <typename Fn>
SPLITSERVE_INLINE void each_part(int64_t size, const Fn& fn) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) fn(i, kLanes);
  if (i < size) fn(i, size - i);
}

// The sum of the squares of element(i, n), in the order of sum_terms.
template <typename Element>
SPLITSERVE_INLINE Vec sum_squares(int64_t size, const Element& element) {
  return sum_terms(size, [&element](int64_t i, int64_t n) {
    const Vec v = element(i, n);
    return v * v;
  });
}

// What RMS norms multiply four rows by.
template <typename T>
SPLITSERVE_INLINE Quad inverse_rms(T* const (&rows)[4], int64_t size, float eps) {
  Vec sums[4];
  for (int r = 0; r < 4; ++r)
    sums[r] = sum_squares(size, [row = rows[r]](int64_t i, int64_t n) { return load_up_to(row + i, n); });
  Quad means = sum_lanes(sums[0], sums[1], sums[2], sums[3]) / static_cast<float>(size) + eps;
  for (int i = 0; i < 4; ++i) means[i] = __builtin_sqrtf(means[i]);
  return 1.0f / means;
}

}  // namespace splitserve::SPLITSERVE_ISA
