// Rotary position embedding of queries or keys in place. A thread turns a chunk of a head's first half with
// its partner half a rotation away.
#include "common/rotate.h"
#include "cuda/chunk.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) rotate_chunks(RotateHeadsParams p, int64_t head_chunks) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = index / head_chunks;
  const int64_t token = row / p.x.heads;
  if (token >= p.tokens) return;
  const int half = static_cast<int>(p.rot_dim / 2), begin = static_cast<int>(index % head_chunks) * kChunk<T>;
  const int64_t position = p.positions[token];
  const bool exists = position >= 0 && position < p.max_pos;
  const float* angles = p.cos_sin + (exists ? position : 0) * p.cos_sin_stride;
  T* head = static_cast<T*>(p.x.data) + token * p.x.token_stride + row % p.x.heads * p.x.head_stride;
  Floats<T> x = unpack<T>(load_chunk<kAligned>(head, begin, half));
  Floats<T> y = unpack<T>(load_chunk<kAligned>(head + half, begin, half));
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    if (begin + i >= half) continue;
    const Rotated<float> turned =
        rotate(x.values[i], y.values[i], angles[begin + i], angles[half + begin + i]);
    x.values[i] = exists ? turned.x : NAN;
    y.values[i] = exists ? turned.y : NAN;
  }
  store_chunk<kAligned>(head, begin, half, pack<T>(x));
  store_chunk<kAligned>(head + half, begin, half, pack<T>(y));
}

}  // namespace

void rotate_heads(const RotateHeadsParams& p, cudaStream_t stream) {
  const int64_t element = dtype_bytes(p.dtype), head_chunks = ceil_div(p.rot_dim / 2 * element, 16);
  Alignment alignment;
  alignment.add(p.x.data).add_bytes(p.x.token_stride * element).add_bytes(p.x.head_stride * element);
  alignment.add_bytes(p.rot_dim / 2 * element);
  const LaunchShape shape{ceil_div(p.tokens * p.x.heads * head_chunks, kThreads), kThreads};
  with_type(p.dtype, alignment.is_aligned(), [&]<typename T, bool kAligned>() {
    launch("rotate_heads", rotate_chunks<T, kAligned>, shape, stream, p, head_chunks);
  });
}

}  // namespace splitserve::cuda
