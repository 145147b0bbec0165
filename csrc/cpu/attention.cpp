// Checks and binding of paged_attention.
#include "cpu/attention.h"

#include "common/check.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

KvCache cache_of(const TensorView& cache, const char* name, const TensorView& like,
                 const AttentionParams& p) {
  cpu_arg(cache, name)
      .activation(p.dtype)
      .rank(4)
      .size(0, like.size(0))
      .size(1, p.kv_heads)
      .size(2, p.block_size)
      .size(3, p.head_dim)
      .interleaved();
  return {cache.data_ptr(), cache.stride(0), cache.stride(1)};
}

void set_queries(AttentionParams* p, const TensorView& out, const TensorView& q, const TensorView& k_cache) {
  p->dtype = cpu_arg(q, "q").rank(3).rows_contiguous().activation();
  cpu_arg(k_cache, "k_cache").rank(4);
  p->tokens = q.size(0);
  p->heads = q.size(1);
  p->head_dim = q.size(2);
  p->kv_heads = k_cache.size(1);
  p->block_size = k_cache.size(2);
  cpu_arg(out, "out")
      .activation(p->dtype)
      .rank(3)
      .size(0, p->tokens)
      .size(1, p->heads)
      .size(2, p->head_dim)
      .rows_contiguous();
  SPLITSERVE_CHECK_VALUE(p->head_dim >= 8 && p->head_dim <= kMaxHeadDim && p->head_dim % 8 == 0,
                         "q: head size must be a multiple of 8 up to 256, got " << p->head_dim);
  SPLITSERVE_CHECK_VALUE(p->kv_heads > 0 && p->heads % p->kv_heads == 0,
                         "q: " << p->heads << " heads are not a multiple of " << p->kv_heads << " KV heads");
  p->out = out.data_ptr();
  p->q = q.data_ptr();
  p->out_token_stride = out.stride(0);
  p->out_head_stride = out.stride(1);
  p->q_token_stride = q.stride(0);
  p->q_head_stride = q.stride(1);
}

// Every block a request's positions name must exist: a wrong table must raise an error, not read other
// memory.
void check_request(const AttentionParams& p, int64_t r) {
  const int64_t query_len = p.cu_seqlens_q[r + 1] - p.cu_seqlens_q[r], seq_len = p.seq_lens[r];
  SPLITSERVE_CHECK_VALUE(query_len >= 0, "cu_seqlens_q: decreases at request " << r);
  if (query_len == 0) return;
  SPLITSERVE_CHECK_VALUE(seq_len >= query_len, "seq_lens: request " << r << " has " << query_len
                                                                    << " query tokens but length "
                                                                    << seq_len);
  const int64_t blocks = (seq_len + p.block_size - 1) / p.block_size;
  SPLITSERVE_CHECK_VALUE(blocks <= p.max_blocks, "block_tables: request " << r << " needs " << blocks
                                                                          << " blocks, has " << p.max_blocks);
  const int64_t seen_from = p.sliding_window > 0 ? seq_len - query_len + 1 - p.sliding_window : 0;
  for (int64_t b = (seen_from > 0 ? seen_from : 0) / p.block_size; b < blocks; ++b) {
    const int64_t block = p.block_tables[r * p.block_table_stride + b];
    SPLITSERVE_CHECK_VALUE(block >= 0 && block < p.num_blocks, "block_tables: request "
                                                                   << r << " names block " << block << " of "
                                                                   << p.num_blocks);
  }
}

void check_lengths(const AttentionParams& p) {
  SPLITSERVE_CHECK_VALUE(p.cu_seqlens_q[0] == 0 && p.cu_seqlens_q[p.requests] == p.tokens,
                         "cu_seqlens_q: must run from 0 to the " << p.tokens << " rows of q");
  for (int64_t r = 0; r < p.requests; ++r) check_request(p, r);
}

void paged_attention(TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                     TensorView block_tables, TensorView cu_seqlens_q, TensorView seq_lens, double scale,
                     int64_t sliding_window, double softcap, Optional<TensorView> sinks) {
  AttentionParams params{};
  set_queries(&params, out, q, k_cache);
  params.k = cache_of(k_cache, "k_cache", k_cache, params);
  params.v = cache_of(v_cache, "v_cache", k_cache, params);
  cpu_arg(block_tables, "block_tables").rank(2).type({kInt32Type}).rows_contiguous();
  params.requests = block_tables.size(0);
  params.max_blocks = block_tables.size(1);
  params.num_blocks = k_cache.size(0);
  params.block_tables = static_cast<const int32_t*>(block_tables.data_ptr());
  params.block_table_stride = block_tables.stride(0);
  params.cu_seqlens_q =
      cpu_arg(cu_seqlens_q, "cu_seqlens_q").vector(kInt32Type, params.requests + 1).data<int32_t>();
  params.seq_lens = cpu_arg(seq_lens, "seq_lens").vector(kInt32Type, params.requests).data<int32_t>();
  SPLITSERVE_CHECK_VALUE(scale > 0.0 && scale < 1e6, "scale: must be positive and finite, got " << scale);
  SPLITSERVE_CHECK_VALUE(sliding_window >= 0, "sliding_window: negative");
  SPLITSERVE_CHECK_VALUE(softcap >= 0.0, "softcap: negative");
  params.scale = static_cast<float>(scale);
  params.sliding_window = sliding_window;
  params.softcap = static_cast<float>(softcap);
  if (sinks.has_value()) {
    const TensorView view = *sinks;
    params.sinks = cpu_arg(view, "sinks")
                       .activation(params.dtype)
                       .rank(1)
                       .size(0, params.heads)
                       .rows_contiguous()
                       .data<void>();
  }
  run_kernel(params, [](const AttentionParams& p) {
    check_lengths(p);
    SPLITSERVE_CALL_KERNEL(paged_attention, p);
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(paged_attention, splitserve::paged_attention);
