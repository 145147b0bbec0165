// Attention within whole sequences: the arguments of paged attention over keys and values that are no cache,
// but lie as the step has made them.
#include "cuda/kernels.h"

namespace splitserve::cuda {
namespace {

AttentionParams paged_params(const WholeAttentionParams& p) {
  AttentionParams result{};
  result.out = p.out;
  result.out_token_stride = p.out_token_stride;
  result.out_head_stride = p.out_head_stride;
  result.q = p.q.data;
  result.q_token_stride = p.q.token_stride;
  result.q_head_stride = p.q.head_stride;
  result.k = p.k.data;
  result.v = p.v.data;
  result.block_stride = p.k.token_stride;
  result.head_stride = p.k.head_stride;
  result.cu_seqlens_q = p.cu_seqlens;
  result.tokens = result.num_blocks = static_cast<int32_t>(p.tokens);
  result.requests = static_cast<int32_t>(p.sequences);
  result.heads = static_cast<int32_t>(p.heads);
  result.kv_heads = static_cast<int32_t>(p.kv_heads);
  result.group = result.heads / result.kv_heads;
  result.head_dim = static_cast<int32_t>(p.head_dim);
  result.block_size = 1;
  result.scale = p.scale;
  // A window counts the row itself; beyond all tokens there are none.
  result.sliding_window = p.reach < p.tokens ? static_cast<int32_t>(p.reach + (p.reach > 0)) : 0;
  result.dtype = p.dtype;
  return result;
}

}  // namespace

void whole_attention(const WholeAttentionParams& params, cudaStream_t stream) {
  if (params.tokens == 0) return;
  const AttentionParams paged = paged_params(params);
  switch (params.dtype) {
    case DType::kFloat32:
      return whole_attention_float(paged, stream);
    case DType::kBFloat16:
      return whole_attention_bfloat16(paged, stream);
    case DType::kFloat16:
      return whole_attention_float16(paged, stream);
  }
}

}  // namespace splitserve::cuda
