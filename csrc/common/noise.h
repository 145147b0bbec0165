// Stateless sampling noise: a hash of (seed, position, token id). The same on every device, in every batch.
//
// The 64-bit steps are the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
// Generators", OOPSLA 2014). The 32-bit mixer uses the three-multiply constants found by C. Wellons' search
// for low-bias integer hashes ("hash-prospector", public domain), bias 0.021. It needs 32-bit multiplies
// only, so a vector unit does one token per lane.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace splitserve {

struct NoiseKey {
  uint32_t low;
  uint32_t high;
};

SPLITSERVE_HOST_DEVICE inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// One key per (request seed, position of the sampled token).
SPLITSERVE_HOST_DEVICE inline NoiseKey noise_key(uint64_t seed, uint64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  const uint64_t key = mix64(mix64(seed + kGolden) + (position + 1) * kGolden);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// `Uint` is uint32_t or a vector of them.
template <typename Uint>
SPLITSERVE_HOST_DEVICE inline Uint mix32(Uint x) {
  x = (x ^ (x >> 17)) * 0xed5ad4bbu;
  x = (x ^ (x >> 11)) * 0xac4c1b51u;
  x = (x ^ (x >> 15)) * 0x31848babu;
  return x ^ (x >> 14);
}

// 32 uniform bits for each token. Two rounds with key halves between them: for one key it is a permutation of
// ids.
template <typename Uint>
SPLITSERVE_HOST_DEVICE inline Uint noise_bits(NoiseKey key, Uint token_id) {
  return mix32(mix32(token_id ^ key.low) + key.high);
}

}  // namespace splitserve
