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

// Checks [num_blocks, 1, block_size, latent + rotary], where each block is dense, or as many codes and their
// scales; returns which.
inline CacheFormat check_latent_cache(const DeviceArgs& args, const TensorView& cache,
                                      const LatentSizes& sizes, DType dtype) {
  const CacheFormat format = args(cache, "cache").rank(4).cache_format(dtype);
  SPLITSERVE_CHECK_VALUE(kCodedLatents || format == CacheFormat::kPlain,
                         "cache: codes of latents are read on CPUs only");
  args(cache, "cache").size(1, 1).size(3, sizes.latent + sizes.rotary + latent_scale_bytes(format));
  args(cache, "cache").rows_contiguous();
  SPLITSERVE_CHECK_VALUE(cache.size(2) > 0 && (cache.size(2) == 1 || cache.stride(2) == cache.size(3)),
                         "cache: the last two dimensions must be contiguous");
  return format;
}

}  // namespace splitserve
