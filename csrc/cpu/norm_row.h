// Sums over the elements of a row, in an order that depends on the row's length alone.
#pragma once

#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {

// Sums over a row of term(i, n), where n is the number of elements left at i, in the lanes of a register
// whose sum is the row's. Four running sums hide the latency of the addition.
template <typename Term>
SPLITSERVE_INLINE Vec sum_row_lanes(int64_t size, const Term& term) {
  Vec sum0{}, sum1{}, sum2{}, sum3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    sum0 = sum0 + term(i, size - i);
    sum1 = sum1 + term(i + kLanes, size - i);
    sum2 = sum2 + term(i + 2 * kLanes, size - i);
    sum3 = sum3 + term(i + 3 * kLanes, size - i);
  }
  for (; i < size; i += kLanes) sum0 = sum0 + term(i, size - i);
  return (sum0 + sum1) + (sum2 + sum3);
}

template <typename T>
SPLITSERVE_INLINE Vec square_row_lanes(const T* x, int64_t size) {
  return sum_row_lanes(size, [x](int64_t i, int64_t n) {
    const Vec v = load_up_to(x + i, n);
    return v * v;
  });
}

// What RMS norms multiply four rows by.
template <typename T>
SPLITSERVE_INLINE Quad inverse_rms(T* const (&rows)[4], int64_t size, float eps) {
  const Quad sums = sum_lanes(square_row_lanes(rows[0], size), square_row_lanes(rows[1], size),
                              square_row_lanes(rows[2], size), square_row_lanes(rows[3], size));
  Quad means = sums / static_cast<float>(size) + eps;
  for (int i = 0; i < 4; ++i) means[i] = __builtin_sqrtf(means[i]);
  return 1.0f / means;
}

}  // namespace splitserve::SPLITSERVE_ISA
