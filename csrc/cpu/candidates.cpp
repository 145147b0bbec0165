// Sorting of the few tokens that a selection has to order.
#include "cpu/candidates.h"

#include <algorithm>

namespace splitserve {

void sort_candidates(Candidate* candidates, int64_t count) {
  std::sort(candidates, candidates + count, is_before);
}

}  // namespace splitserve
