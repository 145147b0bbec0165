// Checks and binding of paged_attention.
#include "cpu/attention.h"

#include "cpu/attention_args.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

KvCache cache_of(const TensorView& cache, const char* name, const TensorView& like,
                 const AttentionParams& p) {
  cpu_arg(cache, name)
      .type_of(like)
      .rank(4)
      .size(0, like.size(0))
      .size(1, p.kv_heads)
      .size(2, p.block_size)
      .size(3, p.head_dim + scale_bytes(p.format))
      .interleaved(p.format);
  return {cache.data_ptr(), cache.stride(0), cache.stride(1)};
}

void set_queries(AttentionParams* p, const TensorView& out, const TensorView& q, const TensorView& k_cache) {
  p->dtype = cpu_arg(q, "q").rank(3).rows_contiguous().activation();
  p->format = cpu_arg(k_cache, "k_cache").rank(4).cache_format(p->dtype);
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

void paged_attention(TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                     TensorView block_tables, TensorView cu_seqlens_q, TensorView seq_lens, double scale,
                     int64_t sliding_window, double softcap, Optional<TensorView> sinks) {
  AttentionParams params{};
  set_queries(&params, out, q, k_cache);
  params.k = cache_of(k_cache, "k_cache", k_cache, params);
  params.v = cache_of(v_cache, "v_cache", k_cache, params);
  set_requests(&params, block_tables, cu_seqlens_q, seq_lens, k_cache.size(0));
  SPLITSERVE_CHECK_VALUE(sliding_window >= 0, "sliding_window: negative");
  SPLITSERVE_CHECK_VALUE(softcap >= 0.0, "softcap: negative");
  params.scale = scale_arg(scale);
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

SPLITSERVE_EXPORT(paged_attention, splitserve::paged_attention);
