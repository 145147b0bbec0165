// Arguments of the kernels around the products of experts: the choice, rows to their experts, and back.
//
// A token has `chosen` slots, one per expert that it passes; slot t * chosen + j is its j-th. Rows that are
// grouped by expert are numbered by places.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/select_key.h"

namespace splitserve {

inline constexpr int64_t kMaxExperts = 1024;

// Larger for an expert that is chosen earlier; of equals the lower one is. NaN comes first, so that the row's
// result is NaN too.
SPLITSERVE_HOST_DEVICE inline uint32_t choice_key(float logit) {
  return logit == logit ? order_key(logit) : UINT32_MAX;
}

struct RouteParams {
  float* weights;       // [tokens, chosen], in the order of the experts' logits
  int32_t* ids;         // [tokens, chosen], the experts
  int32_t* places;      // [tokens * chosen], of each slot; slots of one expert stay in order
  int32_t* starts;      // [experts + 1]: expert e has the places starts[e] to starts[e + 1]
  const float* logits;  // [tokens, experts]
  int64_t logits_stride;
  int64_t tokens, experts, chosen;
  bool adds_up;  // weights are a softmax over the chosen, not over all
};

struct SpreadRowsParams {
  char* out;      // [tokens * chosen] rows, by places
  const char* x;  // [tokens] rows
  const int32_t* places;
  const int32_t* starts;  // [experts + 1]: rows before the first and from the last on are left out
  int64_t out_stride, x_stride, row_bytes;  // in bytes
  int64_t tokens, chosen, experts;
};

// gate * sigmoid(alpha * gate) * (up + 1), gates capped at limit and ups within +-limit.
struct ClampedSwigluParams {
  void* out;      // [rows, size]
  const void* x;  // [rows, 2 * size], gate and up of each unit side by side
  int64_t out_stride, x_stride;
  int64_t rows, size;
  float alpha, limit;
  DType dtype;
};

struct CombineExpertsParams {
  void* out;             // [tokens, size]
  const float* y;        // [tokens * chosen, size], by places
  const float* weights;  // [tokens, chosen]
  const int32_t* places;
  const int32_t* starts;  // [experts + 1]: rows of y before the first and from the last on count as zeros
  const float* shared;    // [tokens, size], added to the weighted sum; nullptr: none
  const float* gate;      // [tokens], its sigmoid multiplies `shared`; nullptr: 1 does
  int64_t out_stride, y_stride, shared_stride;
  int64_t tokens, chosen, experts, size;
  DType out_dtype;
};

}  // namespace splitserve
