// Checks and bindings of latent_attention and latent_write.
#include "cpu/latent_attention.h"

#include "cpu/attention_args.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

// Sizes of a latent and of the rotary key beside it.
struct Sizes {
  int64_t latent, rotary;
};

Sizes sizes_of(int64_t latent, int64_t rotary) {
  SPLITSERVE_CHECK_VALUE(
      latent >= kLatentUnit && latent <= kMaxLatent && latent % kLatentUnit == 0,
      "latent size must be a multiple of " << kLatentUnit << " up to " << kMaxLatent << ", got " << latent);
  SPLITSERVE_CHECK_VALUE(
      rotary >= kLatentUnit && rotary <= kMaxRotary && rotary % kLatentUnit == 0,
      "rotary size must be a multiple of " << kLatentUnit << " up to " << kMaxRotary << ", got " << rotary);
  return {latent, rotary};
}

// [num_blocks, 1, block_size, latent + rotary], where each block is dense.
void check_cache(const TensorView& cache, const Sizes& sizes, DType dtype) {
  cpu_arg(cache, "cache").activation(dtype).rank(4).size(1, 1).size(3, sizes.latent + sizes.rotary);
  cpu_arg(cache, "cache").rows_contiguous();
  SPLITSERVE_CHECK_VALUE(cache.size(2) > 0 && (cache.size(2) == 1 || cache.stride(2) == cache.size(3)),
                         "cache: the last two dimensions must be contiguous");
}

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
  const Sizes sizes = sizes_of(q_latent.size(2), q_rotary.size(2));
  p.head_dim = sizes.latent;
  params.rotary = sizes.rotary;
  check_cache(cache, sizes, p.dtype);
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

void check_places(const LatentWriteParams& p) {
  for (int64_t token = 0; token < p.tokens; ++token) {
    const int64_t position = p.positions[token], slot = p.slot_mapping[token];
    SPLITSERVE_CHECK_VALUE(position >= 0 && position < p.max_pos,
                           "positions: " << position << " is outside cos_sin's " << p.max_pos << " rows");
    SPLITSERVE_CHECK_VALUE(slot < p.num_slots,
                           "slot_mapping: " << slot << " is outside the cache's " << p.num_slots << " slots");
  }
}

void latent_write(TensorView q_rotary, TensorView latents, TensorView positions, TensorView cos_sin,
                  TensorView cache, TensorView slot_mapping, TensorView norm, double eps) {
  LatentWriteParams params{};
  params.dtype = cpu_arg(q_rotary, "q_rotary").rank(3).rows_contiguous().activation();
  params.tokens = q_rotary.size(0);
  params.q = {q_rotary.data_ptr(), q_rotary.stride(0), q_rotary.stride(1), q_rotary.size(1)};
  cpu_arg(norm, "norm").activation(params.dtype).rank(1).rows_contiguous();
  const Sizes sizes = sizes_of(norm.size(0), q_rotary.size(2));
  params.latent = sizes.latent;
  params.rotary = sizes.rotary;
  params.norm = norm.data_ptr();
  params.eps = static_cast<float>(eps);
  cpu_arg(latents, "latents").activation(params.dtype).rank(2).size(0, params.tokens);
  cpu_arg(latents, "latents").size(1, sizes.latent + sizes.rotary).rows_contiguous();
  params.latents = latents.data_ptr();
  params.latents_stride = latents.stride(0);
  params.positions = cpu_arg(positions, "positions").indices(params.tokens);
  cpu_arg(cos_sin, "cos_sin").rank(2).type({kFloat32Type}).size(1, sizes.rotary).rows_contiguous();
  params.cos_sin = static_cast<const float*>(cos_sin.data_ptr());
  params.cos_sin_stride = cos_sin.stride(0);
  params.max_pos = cos_sin.size(0);
  check_cache(cache, sizes, params.dtype);
  params.cache = cache.data_ptr();
  params.block_stride = cache.stride(0);
  params.block_size = cache.size(2);
  params.num_slots = cache.size(0) * params.block_size;
  params.slot_mapping = cpu_arg(slot_mapping, "slot_mapping").indices(params.tokens);
  run_kernel(params, [](const LatentWriteParams& p) {
    check_places(p);
    SPLITSERVE_CALL_KERNEL(latent_write, p);
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(latent_attention, splitserve::latent_attention);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(latent_write, splitserve::latent_write);
