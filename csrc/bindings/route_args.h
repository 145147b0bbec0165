// Checks of the arguments that all rules that choose experts have in common.
#pragma once

#include "common/device_args.h"
#include "common/experts.h"

namespace splitserve {

inline RouteParams route_params(const DeviceArgs& args, const TensorView& weights, const TensorView& ids,
                                const TensorView& places, const TensorView& starts, const TensorView& logits,
                                bool adds_up) {
  RouteParams params{};
  args(logits, "logits").rank(2).type({kFloat32Type}).rows_contiguous();
  params.tokens = logits.size(0);
  params.experts = logits.size(1);
  args(ids, "ids").rank(2).type({kInt32Type}).size(0, params.tokens);
  params.chosen = ids.size(1);
  SPLITSERVE_CHECK_VALUE(params.experts <= kMaxExperts,
                         "logits: expected at most " << kMaxExperts << " experts, got " << params.experts);
  SPLITSERVE_CHECK_VALUE(params.chosen >= 1 && params.chosen <= params.experts,
                         "ids: expected 1 to " << params.experts << " per token, got " << params.chosen);
  args(weights, "weights").rank(2).type({kFloat32Type}).size(0, params.tokens).size(1, params.chosen);
  SPLITSERVE_CHECK_VALUE(ids.IsContiguous() && weights.IsContiguous(), "ids, weights: must be contiguous");
  const int64_t slots = params.tokens * params.chosen;
  SPLITSERVE_CHECK_VALUE(slots <= INT32_MAX, "ids: too many");
  params.weights = static_cast<float*>(weights.data_ptr());
  params.ids = static_cast<int32_t*>(ids.data_ptr());
  params.places = args(places, "places").vector(kInt32Type, slots).data<int32_t>();
  params.starts = args(starts, "starts").vector(kInt32Type, params.experts + 1).data<int32_t>();
  params.logits = static_cast<const float*>(logits.data_ptr());
  params.logits_stride = logits.stride(0);
  params.adds_up = adds_up;
  return params;
}

}  // namespace splitserve
