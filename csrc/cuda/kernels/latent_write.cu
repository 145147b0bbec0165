// Writes this step's latents and rotary keys into their slots of the paged cache, after the norm of the
// latent and the rotation of queries and rotary key. A block takes one token.
#include "common/rotate.h"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 128;

// Elements i and i + half of a row, by the angles of a position; nullptr: to NaN.
template <typename T>
__device__ void turn_pair(T* to_row, const T* row, int i, int half, const float* angles) {
  const float x = to_float(row[i]), y = to_float(row[half + i]);
  const Rotated<float> turned =
      angles == nullptr ? Rotated<float>{NAN, NAN} : rotate(x, y, angles[i], angles[half + i]);
  to_row[i] = to<T>(turned.x);
  to_row[half + i] = to<T>(turned.y);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) write_latent(LatentWriteParams p) {
  const int64_t token = blockIdx.x, slot = p.slot_mapping[token], position = p.positions[token];
  const int thread = static_cast<int>(threadIdx.x), half = static_cast<int>(p.rotary / 2);
  const float* angles =
      position >= 0 && position < p.max_pos ? p.cos_sin + position * p.cos_sin_stride : nullptr;
  T* queries = static_cast<T*>(p.q.data) + token * p.q.token_stride;
  for (int i = thread; i < p.q.heads * half; i += kThreads) {
    T* head = queries + i / half * p.q.head_stride;
    turn_pair(head, head, i % half, half, angles);
  }
  if (slot < 0 || slot >= p.num_slots) return;
  const T* latent = static_cast<const T*>(p.latents) + token * p.latents_stride;
  T* row = static_cast<T*>(p.cache) + slot / p.block_size * p.block_stride +
           slot % p.block_size * (p.latent + p.rotary);
  float squares = 0.0f;
  for (int i = thread; i < p.latent; i += kThreads) squares += to_float(latent[i]) * to_float(latent[i]);
  const float inverse = 1.0f / sqrtf(sum_of_row(squares) / static_cast<float>(p.latent) + p.eps);
  for (int i = thread; i < p.latent; i += kThreads)
    row[i] = to<T>(to_float(latent[i]) * inverse * to_float(static_cast<const T*>(p.norm)[i]));
  for (int i = thread; i < half; i += kThreads) turn_pair(row + p.latent, latent + p.latent, i, half, angles);
}

}  // namespace

void latent_write(const LatentWriteParams& p, cudaStream_t stream) {
  with_type(p.dtype, false, [&]<typename T, bool kAligned>() {
    launch("latent_write", write_latent<T>, {p.tokens, kThreads}, stream, p);
  });
}

}  // namespace splitserve::cuda
