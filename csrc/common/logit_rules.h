// What happens to a logit whose token a request favours or forbids, and what sampling says where it draws no
// token: the same on every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/host_device.h"

namespace splitserve {

// In place of a token id.
inline constexpr int32_t kNotANumber = -1;   // the row holds a NaN
inline constexpr int32_t kNothingLeft = -2;  // all of it is -inf

// A NaN stays, since its row has to fail whatever it forbids.
SPLITSERVE_HOST_DEVICE inline float forbidden(float logit) { return logit != logit ? logit : -INFINITY; }

// -inf as the value forbids the token, whatever else is added to it and in which order.
SPLITSERVE_HOST_DEVICE inline float edited(float logit, float value) {
  return value == -INFINITY ? forbidden(logit) : logit + value;
}

// A mask has a bit per token, set if the token may be drawn; the lowest bit of a word is that of its first
// token.
inline constexpr int kMaskBits = 32;
SPLITSERVE_HOST_DEVICE constexpr int64_t mask_words(int64_t vocab) {
  return (vocab + kMaskBits - 1) / kMaskBits;
}
SPLITSERVE_HOST_DEVICE inline bool is_allowed(const uint32_t* mask, int token_id) {
  return (mask[token_id / kMaskBits] >> token_id % kMaskBits & 1u) != 0;
}

}  // namespace splitserve
