// Checks of the arguments that latent_write and latent_attention have in common.
#pragma once

#include "common/device_args.h"
#include "common/latent_write.h"

namespace splitserve {

// Sizes of a latent and of the rotary key beside it.
struct LatentSizes {
  int64_t latent, rotary;
};

inline LatentSizes latent_sizes(int64_t latent, int64_t rotary) {
  SPLITSERVE_CHECK_VALUE(
      latent >= kLatentUnit && latent <= kMaxLatent && latent % kLatentUnit == 0,
      "latent size must be a multiple of " << kLatentUnit << " up to " << kMaxLatent << ", got " << latent);
  SPLITSERVE_CHECK_VALUE(
      rotary >= kLatentUnit && rotary <= kMaxRotary && rotary % kLatentUnit == 0,
      "rotary size must be a multiple of " << kLatentUnit << " up to " << kMaxRotary << ", got " << rotary);
  return {latent, rotary};
}

// [num_blocks, 1, block_size, latent + rotary], where each block is dense.
inline void check_latent_cache(const DeviceArgs& args, const TensorView& cache, const LatentSizes& sizes,
                               DType dtype) {
  args(cache, "cache").activation(dtype).rank(4).size(1, 1).size(3, sizes.latent + sizes.rotary);
  args(cache, "cache").rows_contiguous();
  SPLITSERVE_CHECK_VALUE(cache.size(2) > 0 && (cache.size(2) == 1 || cache.stride(2) == cache.size(3)),
                         "cache: the last two dimensions must be contiguous");
}

}  // namespace splitserve
