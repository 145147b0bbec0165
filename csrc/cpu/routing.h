// What all rules that choose experts have in common.
#pragma once

#include "common/experts.h"
#include "cpu/norm_row.h"
#include "cpu/vec_math.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// The experts, or groups of them, with the largest scores, the largest first; of equals the one with the
// lower id.
inline void choose(const float* scores, int64_t experts, int32_t* ids, int64_t chosen) {
  uint32_t keys[kMaxExperts];
  int64_t count = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const uint32_t key = choice_key(scores[expert]);
    if (count == chosen && key <= keys[count - 1]) continue;
    int64_t i = count < chosen ? count++ : count - 1;
    for (; i > 0 && keys[i - 1] < key; --i) {
      keys[i] = keys[i - 1];
      ids[i] = ids[i - 1];
    }
    keys[i] = key;
    ids[i] = static_cast<int32_t>(expert);
  }
}

// The sum of e^(logit - largest) over all experts.
inline float sum_of_all(const float* logits, int64_t experts, float largest) {
  return sum_lanes(sum_terms(experts, [=](int64_t i, int64_t n) {
    constexpr float kNothing = -__builtin_inff();
    return exp((n >= kLanes ? load(logits + i) : load_partial(logits + i, static_cast<int>(n), kNothing)) -
               largest);
  }));
}

// Counts the slots of each expert, and gives every slot its place.
inline void sort_slots(const RouteParams& p) {
  const int64_t slots = p.tokens * p.chosen;
  int32_t next[kMaxExperts] = {};
  for (int64_t slot = 0; slot < slots; ++slot) ++next[p.ids[slot]];
  int32_t place = 0;
  for (int64_t expert = 0; expert < p.experts; ++expert) {
    const int32_t count = next[expert];
    p.starts[expert] = next[expert] = place;
    place += count;
  }
  p.starts[p.experts] = place;
  for (int64_t slot = 0; slot < slots; ++slot) p.places[slot] = next[p.ids[slot]]++;
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
