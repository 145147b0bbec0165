// A token with its logit, and the order in which tokens are preferred.
#pragma once

#include <cstdint>

namespace splitserve {

struct Candidate {
  float logit;
  int32_t token_id;
};

// Higher logit first, ties by lowest id.
inline bool is_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token_id < b.token_id);
}

void sort_candidates(Candidate* candidates, int64_t count);

// The k-th largest value, k from 1 to count; reorders the values.
float kth_largest(float* values, int64_t count, int64_t k);

}  // namespace splitserve
