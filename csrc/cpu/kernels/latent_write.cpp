// Writes this step's latents and rotary keys into their slots of the paged cache, after the norm of the
// latent and the rotation of queries and rotary key.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/turn_head.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <typename T>
void write_token(const LatentWriteParams& p, int64_t token) {
  const float* cosines = p.cos_sin + p.positions[token] * p.cos_sin_stride;
  const int64_t half = p.rotary / 2, slot = p.slot_mapping[token];
  const T* latent = static_cast<const T*>(p.latents) + token * p.latents_stride;
  T* heads = static_cast<T*>(p.q.data) + token * p.q.token_stride;
  turn_heads<T>({heads, p.q.head_stride, p.rotary, half, cosines, cosines + half, nullptr, 0.0f, 0.0f},
                p.q.heads);
  if (slot < 0) return;
  T* to = static_cast<T*>(p.cache) + slot / p.block_size * p.block_stride +
          slot % p.block_size * (p.latent + p.rotary);
  const T* const rows[4] = {latent, latent, latent, latent};
  const Vec factor = broadcast(inverse_rms(rows, p.latent, p.eps)[0]);
  for (int64_t i = 0; i < p.latent; i += kLanes)
    store(to + i, load(latent + i) * factor * load(static_cast<const T*>(p.norm) + i));
  T* const key = to + p.latent;
  std::memcpy(key, latent + p.latent, static_cast<size_t>(p.rotary) * sizeof(T));
  turn_heads<T>({key, 0, p.rotary, half, cosines, cosines + half, nullptr, 0.0f, 0.0f}, 1);
}

template <typename T>
void write_all(const LatentWriteParams& p) {
  const int64_t work = p.tokens * (p.latent + p.rotary * (p.q.heads + 1));
  parallel_for(p.tokens, work, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) write_token<T>(p, token);
  });
}

}  // namespace

void latent_write(const LatentWriteParams& params) {
  if (params.dtype == DType::kBFloat16) {
    write_all<BFloat16>(params);
  } else {
    write_all<float>(params);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
