// Floats as unsigned integers in the same order, so that logits can be selected by their bits.
#pragma once

#include <bit>
#include <cstdint>

#include "common/host_device.h"

namespace splitserve {

// a < b if and only if key(a) < key(b); 0.0 and -0.0 have one key. NaN of either sign lies outside the
// numbers.
SPLITSERVE_HOST_DEVICE inline uint32_t order_key(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x == 0.0f ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

SPLITSERVE_HOST_DEVICE inline float from_order_key(uint32_t key) {
  return std::bit_cast<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Larger for a more preferred token: by logit, and among equal logits the lower id. All keys of a row differ.
SPLITSERVE_HOST_DEVICE inline uint64_t preference_key(float logit, int32_t token_id) {
  return static_cast<uint64_t>(order_key(logit)) << 32 | ~static_cast<uint32_t>(token_id);
}

}  // namespace splitserve
