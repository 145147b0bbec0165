// Arguments of the kernel that writes a token's latent and rotary key into the cache of latent attention.
//
// Beside its latent a token has a rotary key. All query heads read the same of both, as their keys, and the
// latent as their values, too; so the cache holds one row per token, and nothing twice.
#pragma once

#include "common/kv_write.h"

namespace splitserve {

// Latents and rotary keys are multiples of this many elements, and have at most these.
inline constexpr int64_t kLatentUnit = 32, kMaxLatent = 512, kMaxRotary = 128;

// Of a row of codes: latent and rotary key have a scale each.
inline constexpr int64_t latent_scale_bytes(CacheFormat format) { return 2 * scale_bytes(format); }

struct LatentWriteParams {
  HeadRows q;              // [tokens, heads, rotary], turned in place
  const void* latents;     // [tokens, latent + rotary]
  int64_t latents_stride;  // from one token to the next
  const void* norm;        // [latent], weights of the RMS norm
  float eps;
  IndexArray positions;     // [tokens]
  IndexArray slot_mapping;  // [tokens]; a negative slot is skipped
  const float* cos_sin;     // [max_pos, rotary]
  int64_t cos_sin_stride;
  void* cache;  // [num_blocks, block_size, latent + rotary], of codes with latent_scale_bytes() behind them
  int64_t block_stride;
  int64_t tokens, latent, rotary, block_size, num_slots, max_pos;
  DType dtype;
  CacheFormat format;
};

}  // namespace splitserve
