// Arguments of the paged attention kernel, and the fixed borders its sums are split at.
#pragma once

#include "common/cache_format.h"
#include "common/dtype.h"
#include "cpu/isa.h"

namespace splitserve {

inline constexpr int64_t kMaxHeadDim = 256;

struct KvCache {
  const void* data;                   // [num_blocks, kv_heads, block_size * head_dim], see attention_chunk.h
  int64_t block_stride, head_stride;  // in elements, of codes in bytes
};

struct AttentionParams {
  void* out;      // [tokens, heads, head_dim]
  const void* q;  // [tokens, heads, head_dim]
  int64_t out_token_stride, out_head_stride;
  int64_t q_token_stride, q_head_stride;
  KvCache k, v;
  const int32_t* block_tables;  // [requests, max_blocks]
  int64_t block_table_stride;
  const int32_t* cu_seqlens_q;     // [requests + 1]
  const int32_t* seq_lens;         // [requests]
  int64_t max_blocks, num_blocks;  // of a request, of the cache
  int64_t requests, tokens, heads, kv_heads, head_dim, block_size;
  float scale;
  int64_t sliding_window;  // a row sees this many positions up to its own; 0: all
  float softcap;           // 0: none
  const void* sinks;  // [heads], scores of nothing, which take a share of each row's weights; nullptr: none
  DType dtype;        // of queries and results
  CacheFormat format;
};

}  // namespace splitserve

SPLITSERVE_DECLARE_TILE_KERNEL(paged_attention, AttentionParams)
