// Arguments of the kernel that chooses experts of a few groups, as DeepSeek does.
#pragma once

#include "common/experts.h"

namespace splitserve {

// A sum of weights of zero stays one that can be divided by.
inline constexpr float kLeastWeightSum = 1e-20f;

struct GroupedRouteParams {
  RouteParams route;  // weights are those of the scores, divided by their sum if they are to add up
  const float* bias;  // [experts], added to the scores for the choice alone; nullptr: none
  int64_t groups;     // of as many experts each
  int64_t chosen_groups;
  bool is_sigmoid;  // scores are the logits' sigmoids, not their softmax
  bool counts_two;  // a group is judged by the sum of its two best, not by the best
  float scaling;    // of the weights
};

}  // namespace splitserve
