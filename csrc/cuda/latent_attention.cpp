// Checks and binding of latent_attention on the GPU.
#include "cuda/latent_attention.h"

#include "bindings/latent_args.h"
#include "cuda/kernels.h"

namespace splitserve {
namespace {

int64_t latent_shared_bytes() { return cuda::latent_shared_bytes(); }

void set_queries(LatentAttentionParams* params, const DeviceArgs& args, const TensorView& out,
                 const TensorView& q_latent, const TensorView& q_rotary) {
  AttentionParams& p = params->base;
  p.dtype = args(q_latent, "q_latent").rank(3).rows_contiguous().activation();
  p.tokens = static_cast<int32_t>(q_latent.size(0));
  p.heads = p.group = static_cast<int32_t>(q_latent.size(1));
  p.kv_heads = 1;
  SPLITSERVE_CHECK_VALUE(p.heads > 0, "q_latent: has no heads");
  args(q_rotary, "q_rotary").activation(p.dtype).rank(3).size(0, p.tokens).size(1, p.heads);
  args(q_rotary, "q_rotary").rows_contiguous();
  const LatentSizes sizes = latent_sizes(q_latent.size(2), q_rotary.size(2));
  p.head_dim = static_cast<int32_t>(sizes.latent);
  params->rotary = static_cast<int32_t>(sizes.rotary);
  args(out, "out").activation(p.dtype).rank(3).size(0, p.tokens).size(1, p.heads).size(2, sizes.latent);
  args(out, "out").rows_contiguous();
  p.out = out.data_ptr();
  p.out_token_stride = out.stride(0);
  p.out_head_stride = out.stride(1);
  p.q = q_latent.data_ptr();
  p.q_token_stride = q_latent.stride(0);
  p.q_head_stride = q_latent.stride(1);
  params->q_rotary = q_rotary.data_ptr();
  params->rotary_token_stride = q_rotary.stride(0);
  params->rotary_head_stride = q_rotary.stride(1);
}

void set_cache(LatentAttentionParams* params, const DeviceArgs& args, const TensorView& cache) {
  AttentionParams& p = params->base;
  check_latent_cache(args, cache, {p.head_dim, params->rotary}, p.dtype);
  constexpr int64_t kCopyBytes = 16;
  const int64_t begins =
      reinterpret_cast<intptr_t>(cache.data_ptr()) | cache.stride(0) * dtype_bytes(p.dtype);
  SPLITSERVE_CHECK_VALUE(begins % kCopyBytes == 0, "cache: blocks must begin at multiples of 16 bytes");
  p.k = p.v = cache.data_ptr();
  p.block_stride = cache.stride(0);
  p.slot_stride = params->width();
  p.block_size = static_cast<int32_t>(cache.size(2));
  p.num_blocks = static_cast<int32_t>(cache.size(0));
}

void set_requests(AttentionParams* p, const DeviceArgs& args, const TensorView& block_tables,
                  const TensorView& cu_seqlens_q, const TensorView& seq_lens) {
  args(block_tables, "block_tables").rank(2).type({kInt32Type}).rows_contiguous();
  p->requests = static_cast<int32_t>(block_tables.size(0));
  p->table_width = static_cast<int32_t>(block_tables.size(1));
  p->block_tables = static_cast<const int32_t*>(block_tables.data_ptr());
  p->block_table_stride = block_tables.stride(0);
  p->cu_seqlens_q = args(cu_seqlens_q, "cu_seqlens_q").vector(kInt32Type, p->requests + 1).data<int32_t>();
  p->seq_lens = args(seq_lens, "seq_lens").vector(kInt32Type, p->requests).data<int32_t>();
}

void latent_attention(TensorView out, TensorView q_latent, TensorView q_rotary, TensorView cache,
                      TensorView block_tables, TensorView cu_seqlens_q, TensorView seq_lens, double scale) {
  const DeviceArgs args(q_latent, "q_latent");
  LatentAttentionParams params{};
  set_queries(&params, args, out, q_latent, q_rotary);
  set_cache(&params, args, cache);
  set_requests(&params.base, args, block_tables, cu_seqlens_q, seq_lens);
  SPLITSERVE_CHECK_VALUE(scale > 0.0 && scale < 1e6, "scale: must be positive and finite, got " << scale);
  params.base.scale = static_cast<float>(scale);
  if (params.base.tokens == 0) return;
  switch (params.base.dtype) {
    case DType::kFloat32:
      SPLITSERVE_RUN(latent_attention_float, params, args.device());
      return;
    case DType::kBFloat16:
      SPLITSERVE_RUN(latent_attention_bfloat16, params, args.device());
      return;
    case DType::kFloat16:
      SPLITSERVE_RUN(latent_attention_float16, params, args.device());
  }
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(latent_attention, splitserve::latent_attention);
SPLITSERVE_EXPORT(latent_shared_bytes, splitserve::latent_shared_bytes);
