// Arguments of attention over latents on the GPU; see common/latent_write.h.
#pragma once

#include "common/latent_write.h"
#include "cuda/attention.h"

namespace splitserve {

struct LatentAttentionParams {
  // Its `q` and `out` are [tokens, heads, latent], head_dim is that of the latent, and `k` and `v` the cache,
  // [num_blocks, block_size, latent + rotary]. All heads are one group.
  AttentionParams base;
  const void* q_rotary;  // [tokens, heads, rotary]
  int64_t rotary_token_stride, rotary_head_stride;
  int32_t rotary;

  SPLITSERVE_HOST_DEVICE int32_t width() const { return base.head_dim + rotary; }
};

}  // namespace splitserve
