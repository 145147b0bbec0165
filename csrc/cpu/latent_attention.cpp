// Checks and binding of latent_attention.
#include "cpu/latent_attention.h"

#include "bindings/latent_args.h"
#include "cpu/attention_args.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

void latent_attention(TensorView out, TensorView q_latent, TensorView q_rotary, TensorView cache,
                      TensorView block_tables, TensorView cu_seqlens_q, TensorView seq_lens, double scale) {
  LatentAttentionParams params{};
  AttentionParams& p = params.base;
  p.dtype = cpu_arg(q_latent, "q_latent").rank(3).rows_contiguous().activation();
  p.tokens = q_latent.size(0);
  p.heads = q_latent.size(1);
  p.kv_heads = 1;
  cpu_arg(q_rotary, "q_rotary").activation(p.dtype).rank(3).size(0, p.tokens).size(1, p.heads);
  cpu_arg(q_rotary, "q_rotary").rows_contiguous();
  const LatentSizes sizes = latent_sizes(q_latent.size(2), q_rotary.size(2));
  p.head_dim = sizes.latent;
  params.rotary = sizes.rotary;
  p.format = check_latent_cache(DeviceArgs(q_latent, "q_latent"), cache, sizes, p.dtype);
  cpu_arg(out, "out").activation(p.dtype).rank(3).size(0, p.tokens).size(1, p.heads).size(2, sizes.latent);
  cpu_arg(out, "out").rows_contiguous();
  p.block_size = cache.size(2);
  p.k = {cache.data_ptr(), cache.stride(0), 0};
  p.out = out.data_ptr();
  p.out_token_stride = out.stride(0);
  p.out_head_stride = out.stride(1);
  p.q = q_latent.data_ptr();
  p.q_token_stride = q_latent.stride(0);
  p.q_head_stride = q_latent.stride(1);
  params.q_rotary = q_rotary.data_ptr();
  params.rotary_token_stride = q_rotary.stride(0);
  params.rotary_head_stride = q_rotary.stride(1);
  set_requests(&p, block_tables, cu_seqlens_q, seq_lens, cache.size(0));
  p.scale = scale_arg(scale);
  run_kernel(params, [](const LatentAttentionParams& p) {
    check_lengths(p.base);
    SPLITSERVE_CALL_KERNEL(latent_attention, p);
  });
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(latent_attention, splitserve::latent_attention);
