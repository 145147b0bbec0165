// Arguments of the attention of whole sequences, in which every token sees those before and behind it.
#pragma once

#include "common/dtype.h"

namespace splitserve {

// Longest head.
inline constexpr int64_t kMaxWholeDim = 256;

// Queries, keys or values, [tokens, heads, head_dim]. Strides are in elements.
struct HeadTensor {
  const void* data;
  int64_t token_stride, head_stride;
};

struct WholeAttentionParams {
  void* out;  // [tokens, heads, head_dim]
  int64_t out_token_stride, out_head_stride;
  HeadTensor q, k, v;         // k and v have the same strides
  const int32_t* cu_seqlens;  // [sequences + 1]
  int64_t sequences, tokens, heads, kv_heads, head_dim;
  float scale;
  int64_t reach;  // a token sees this many positions to either side of its own; 0: all
  DType dtype;
};

}  // namespace splitserve
