// Turns queries and keys by their positions and writes keys and values into the paged cache: either or both,
// in one pass over the step's QKV.
//
// A block takes one token. Its work is a list of chunks: the pairs of query chunks, then those of keys, then
// what is copied as it is.
#include "common/rotate.h"
#include "cuda/chunk.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kMaxThreads = 256;

// One token's row of the table; none for a position outside it, whose queries and keys become NaN.
__device__ const float* angles_of(const RotaryParams& p, int64_t token) {
  const int64_t position = p.positions[token];
  return position >= 0 && position < p.max_pos ? p.cos_sin + position * p.cos_sin_stride : nullptr;
}

// As many floats as a chunk of T has elements.
template <bool kAligned, typename T>
__device__ Floats<T> load_floats(const float* row, int begin, int size) {
  Floats<T> result;
#pragma unroll
  for (int i = 0; i < kChunk<T>; i += kChunk<float>) {
    const Floats<float> four = unpack<float>(load_chunk<kAligned>(row, begin + i, size));
#pragma unroll
    for (int j = 0; j < kChunk<float>; ++j) result.values[i + j] = four.values[j];
  }
  return result;
}

// Rotates the chunk at `begin` of a head's first half with its partner half a rotation away.
template <bool kAligned, typename T>
__device__ void rotate_chunk(T* target, const T* source, int begin, int half, const float* angles) {
  const Floats<T> cosines = load_floats<kAligned, T>(angles, begin, angles == nullptr ? 0 : half);
  const Floats<T> sines = load_floats<kAligned, T>(angles + half, begin, angles == nullptr ? 0 : half);
  Floats<T> x = unpack<T>(load_chunk<kAligned>(source, begin, half));
  Floats<T> y = unpack<T>(load_chunk<kAligned>(source + half, begin, half));
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    const auto turned = rotate(x.values[i], y.values[i], cosines.values[i], sines.values[i]);
    x.values[i] = angles == nullptr ? NAN : turned.x;
    y.values[i] = angles == nullptr ? NAN : turned.y;
  }
  store_chunk<kAligned>(target, begin, half, pack<T>(x));
  store_chunk<kAligned>(target + half, begin, half, pack<T>(y));
}

template <bool kAligned, typename T>
__device__ void copy_chunk(T* target, const T* source, int begin, int size) {
  store_chunk<kAligned>(target, begin, size, load_chunk<kAligned>(source, begin, size));
}

template <typename T>
__device__ T* head_of(const RotaryHeads& heads, int64_t token, int64_t head) {
  return static_cast<T*>(heads.data) + token * heads.token_stride + head * heads.head_stride;
}

template <typename T>
__device__ const T* row_of(const KvRows& rows, int64_t token, int64_t head) {
  return static_cast<const T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

// Where a head's keys or values of one slot lie.
template <typename T>
__device__ T* slot_of(const KvSlots& cache, const KvWriteParams& p, int64_t slot, int64_t head) {
  return static_cast<T*>(cache.data) + slot / p.block_size * cache.block_stride + head * cache.head_stride +
         slot % p.block_size * cache.slot_stride;
}

// Calls fn(head, first element) for this thread's share of the chunks of `heads` heads of `size` elements.
// The chunks follow `before` others, so that threads without one of those begin here.
template <typename T, typename Fn>
__device__ void for_chunks(int64_t heads, int size, uint32_t before, const Fn& fn) {
  const uint32_t per_head = static_cast<uint32_t>(ceil_div(size, kChunk<T>));
  const uint32_t total = static_cast<uint32_t>(heads) * per_head;
  // First index of this thread's that is not below `before`, counted from there.
  const uint32_t first = (threadIdx.x + blockDim.x - before % blockDim.x) % blockDim.x;
  for (uint32_t i = first; i < total; i += blockDim.x)
    fn(i / per_head, static_cast<int>(i % per_head) * kChunk<T>);
}

template <typename T>
__device__ uint32_t num_chunks(int64_t heads, int64_t size) {
  return static_cast<uint32_t>(heads * ceil_div(size, kChunk<T>));
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) rotate_heads(RotaryParams p) {
  const int64_t token = blockIdx.x;
  const int half = static_cast<int>(p.rot_dim / 2);
  const float* angles = angles_of(p, token);
  const auto turn = [&](const RotaryHeads& heads, uint32_t before) {
    for_chunks<T>(heads.heads, half, before, [&](int64_t head, int begin) {
      T* row = head_of<T>(heads, token, head);
      rotate_chunk<kAligned>(row, row, begin, half, angles);
    });
  };
  turn(p.q, 0);
  turn(p.k, num_chunks<T>(p.q.heads, half));
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) write_slots(KvWriteParams p) {
  const int64_t token = blockIdx.x, slot = p.slot_mapping[token];
  const int head_dim = static_cast<int>(p.head_dim);
  if (slot < 0 || slot >= p.num_slots) return;
  const auto copy = [&](const KvSlots& cache, const KvRows& rows, uint32_t before) {
    for_chunks<T>(p.heads, head_dim, before, [&](int64_t head, int begin) {
      copy_chunk<kAligned>(slot_of<T>(cache, p, slot, head), row_of<T>(rows, token, head), begin, head_dim);
    });
  };
  copy(p.k_cache, p.k, 0);
  copy(p.v_cache, p.v, num_chunks<T>(p.heads, p.head_dim));
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) rotate_and_write(RotaryKvWriteParams params) {
  const RotaryParams& r = params.rotary;
  const KvWriteParams& w = params.write;
  const int64_t token = blockIdx.x, slot = w.slot_mapping[token];
  const int half = static_cast<int>(r.rot_dim / 2), head_dim = static_cast<int>(w.head_dim);
  const int rot_dim = 2 * half, unturned = head_dim - rot_dim;
  const float* angles = angles_of(r, token);
  for_chunks<T>(r.q.heads, half, 0, [&](int64_t head, int begin) {
    T* row = head_of<T>(r.q, token, head);
    rotate_chunk<kAligned>(row, row, begin, half, angles);
  });
  if (slot < 0 || slot >= w.num_slots) return;
  uint32_t before = num_chunks<T>(r.q.heads, half);
  for_chunks<T>(w.heads, half, before, [&](int64_t head, int begin) {
    rotate_chunk<kAligned>(slot_of<T>(w.k_cache, w, slot, head), row_of<T>(w.k, token, head), begin, half,
                           angles);
  });
  before += num_chunks<T>(w.heads, half);
  for_chunks<T>(w.heads, unturned, before, [&](int64_t head, int begin) {
    copy_chunk<kAligned>(slot_of<T>(w.k_cache, w, slot, head) + rot_dim,
                         row_of<T>(w.k, token, head) + rot_dim, begin, unturned);
  });
  before += num_chunks<T>(w.heads, unturned);
  for_chunks<T>(w.heads, head_dim, before, [&](int64_t head, int begin) {
    copy_chunk<kAligned>(slot_of<T>(w.v_cache, w, slot, head), row_of<T>(w.v, token, head), begin, head_dim);
  });
}

void add_heads(Alignment* alignment, const RotaryParams& p) {
  const int64_t element = dtype_bytes(p.dtype);
  for (const RotaryHeads& heads : {p.q, p.k}) {
    alignment->add(heads.data).add_bytes(heads.token_stride * element).add_bytes(heads.head_stride * element);
  }
  alignment->add_bytes(p.rot_dim / 2 * element);
  alignment->add(p.cos_sin).add_bytes(p.cos_sin_stride * static_cast<int64_t>(sizeof(float)));
}

void add_cache(Alignment* alignment, const KvWriteParams& p) {
  const int64_t element = dtype_bytes(p.dtype);
  for (const KvRows& rows : {p.k, p.v}) {
    alignment->add(rows.data).add_bytes(rows.token_stride * element).add_bytes(rows.head_stride * element);
  }
  for (const KvSlots& cache : {p.k_cache, p.v_cache}) {
    alignment->add(cache.data)
        .add_bytes(cache.block_stride * element)
        .add_bytes(cache.head_stride * element)
        .add_bytes(cache.slot_stride * element);
  }
  alignment->add_bytes(p.head_dim * element);
}

// One block per token, with a thread per chunk as far as they go.
LaunchShape token_shape(int64_t tokens, int64_t elements, DType dtype) {
  const int64_t warps = ceil_div(ceil_div(elements * dtype_bytes(dtype), 16), 32);
  const int64_t threads = (warps < 1 ? 1 : warps) * 32;
  return {tokens, dim3(static_cast<unsigned>(threads < kMaxThreads ? threads : kMaxThreads))};
}

}  // namespace

void rotary_embedding(const RotaryParams& p, cudaStream_t stream) {
  Alignment alignment;
  add_heads(&alignment, p);
  const LaunchShape shape = token_shape(p.tokens, (p.q.heads + p.k.heads) * p.rot_dim / 2, p.dtype);
  with_type(p.dtype, alignment.is_aligned(), [&]<typename T, bool kAligned>() {
    launch("rotary_embedding", rotate_heads<T, kAligned>, shape, stream, p);
  });
}

void kv_write(const KvWriteParams& p, cudaStream_t stream) {
  Alignment alignment;
  add_cache(&alignment, p);
  const LaunchShape shape = token_shape(p.tokens, 2 * p.heads * p.head_dim, p.dtype);
  with_type(p.dtype, alignment.is_aligned(), [&]<typename T, bool kAligned>() {
    launch("kv_write", write_slots<T, kAligned>, shape, stream, p);
  });
}

void rotary_kv_write(const RotaryKvWriteParams& p, cudaStream_t stream) {
  Alignment alignment;
  add_heads(&alignment, p.rotary);
  add_cache(&alignment, p.write);
  const int64_t elements = p.rotary.q.heads * p.rotary.rot_dim / 2 + 2 * p.write.heads * p.write.head_dim;
  const LaunchShape shape = token_shape(p.write.tokens, elements, p.write.dtype);
  with_type(p.write.dtype, alignment.is_aligned(), [&]<typename T, bool kAligned>() {
    launch("rotary_kv_write", rotate_and_write<T, kAligned>, shape, stream, p);
  });
}

}  // namespace splitserve::cuda
