// Ordering of the few tokens that a selection has to order.
#include "cpu/candidates.h"

#include <algorithm>
#include <functional>

namespace splitserve {

void sort_candidates(Candidate* candidates, int64_t count) {
  std::sort(candidates, candidates + count, is_before);
}

float kth_largest(float* values, int64_t count, int64_t k) {
  std::nth_element(values, values + k - 1, values + count, std::greater<>());
  return values[k - 1];
}

}  // namespace splitserve
