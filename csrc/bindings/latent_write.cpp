// Checks and binding of latent_write.
#include "common/latent_write.h"

#include "bindings/latent_args.h"

namespace splitserve {
namespace {

[[maybe_unused]] void check_places(const LatentWriteParams& p) {
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
  const DeviceArgs args(q_rotary, "q_rotary");
  LatentWriteParams params{};
  params.dtype = args(q_rotary, "q_rotary").rank(3).rows_contiguous().activation();
  params.tokens = q_rotary.size(0);
  params.q = {q_rotary.data_ptr(), q_rotary.stride(0), q_rotary.stride(1), q_rotary.size(1)};
  args(norm, "norm").activation(params.dtype).rank(1).rows_contiguous();
  const LatentSizes sizes = latent_sizes(norm.size(0), q_rotary.size(2));
  params.latent = sizes.latent;
  params.rotary = sizes.rotary;
  params.norm = norm.data_ptr();
  params.eps = static_cast<float>(eps);
  args(latents, "latents").activation(params.dtype).rank(2).size(0, params.tokens);
  args(latents, "latents").size(1, sizes.latent + sizes.rotary).rows_contiguous();
  params.latents = latents.data_ptr();
  params.latents_stride = latents.stride(0);
  params.positions = args(positions, "positions").indices(params.tokens);
  args(cos_sin, "cos_sin").rank(2).type({kFloat32Type}).size(1, sizes.rotary).rows_contiguous();
  params.cos_sin = static_cast<const float*>(cos_sin.data_ptr());
  params.cos_sin_stride = cos_sin.stride(0);
  params.max_pos = cos_sin.size(0);
  params.format = check_latent_cache(args, cache, sizes, params.dtype);
  params.cache = cache.data_ptr();
  params.block_stride = cache.stride(0);
  params.block_size = cache.size(2);
  params.num_slots = cache.size(0) * params.block_size;
  params.slot_mapping = args(slot_mapping, "slot_mapping").indices(params.tokens);
  SPLITSERVE_RUN_CHECKED(latent_write, check_places, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(latent_write, splitserve::latent_write);
