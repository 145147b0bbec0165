// Writes this step's latents and rotary keys into their slots of the paged cache, after the norm of the
// latent and the rotation of queries and rotary key.
#include "cpu/kernels.h"
#include "cpu/latent_codes.h"
#include "cpu/parallel.h"
#include "cpu/turn_head.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <typename T, typename Codes>
void write_token(const LatentWriteParams& p, int64_t token) {
  constexpr bool kIsPlain = Codes::kFormat == CacheFormat::kPlain;
  const float* cosines = p.cos_sin + p.positions[token] * p.cos_sin_stride;
  const int64_t half = p.rotary / 2, slot = p.slot_mapping[token];
  const T* latent = static_cast<const T*>(p.latents) + token * p.latents_stride;
  T* heads = static_cast<T*>(p.q.data) + token * p.q.token_stride;
  turn_heads<T>({heads, p.q.head_stride, p.rotary, half, cosines, cosines + half, nullptr, 0.0f, 0.0f},
                p.q.heads);
  if (slot < 0) return;
  const LatentRow row{p.latent, p.rotary};
  const int64_t place = slot / p.block_size * p.block_stride +
                        slot % p.block_size * (row.width() + latent_scale_bytes(Codes::kFormat));
  alignas(64) T uncoded[kIsPlain ? 1 : kMaxLatent + kMaxRotary];
  T* const to = kIsPlain ? static_cast<T*>(p.cache) + place : uncoded;
  const T* const rows[4] = {latent, latent, latent, latent};
  const Vec factor = broadcast(inverse_rms(rows, p.latent, p.eps)[0]);
  for (int64_t i = 0; i < p.latent; i += kLanes)
    store(to + i, load(latent + i) * factor * load(static_cast<const T*>(p.norm) + i));
  T* const key = to + p.latent;
  std::memcpy(key, latent + p.latent, static_cast<size_t>(p.rotary) * sizeof(T));
  turn_heads<T>({key, 0, p.rotary, half, cosines, cosines + half, nullptr, 0.0f, 0.0f}, 1);
  if constexpr (!kIsPlain) encode_row<Codes>(static_cast<uint8_t*>(p.cache) + place, uncoded, row);
}

template <typename T, typename Codes>
void write_all(const LatentWriteParams& p) {
  const int64_t work = p.tokens * (p.latent + p.rotary * (p.q.heads + 1));
  parallel_for(p.tokens, work, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) write_token<T, Codes>(p, token);
  });
}

}  // namespace

void latent_write(const LatentWriteParams& params) {
  if (params.dtype == DType::kFloat32) return write_all<float, NoCodes>(params);
  switch (params.format) {
    case CacheFormat::kPlain:
      return write_all<BFloat16, NoCodes>(params);
    case CacheFormat::kInt8:
      return write_all<BFloat16, Int8Codes>(params);
    case CacheFormat::kFp8:
      return write_all<BFloat16, Fp8Codes>(params);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
