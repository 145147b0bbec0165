// Arguments of attention over latents; see common/latent_write.h.
#pragma once

#include "common/latent_write.h"
#include "cpu/attention.h"

namespace splitserve {

struct LatentAttentionParams {
  // Its `q` and `out` are [tokens, heads, latent], head_dim is that of the latent, and `k` the cache,
  // [num_blocks, block_size, latent + rotary], or codes of it, see cpu/latent_codes.h.
  AttentionParams base;
  const void* q_rotary;  // [tokens, heads, rotary]
  int64_t rotary_token_stride, rotary_head_stride;
  int64_t rotary;
};

}  // namespace splitserve

SPLITSERVE_DECLARE_TILE_KERNEL(latent_attention, LatentAttentionParams)
