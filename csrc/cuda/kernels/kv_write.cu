// Writes keys and values into the paged cache: as they are, or in one pass over the step's QKV with the norms
// and the rotation of queries and keys. A block takes one token.
#include "common/rotate.h"
#include "cuda/chunk.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

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

// What a head's elements are multiplied with before they turn; weights == nullptr: nothing.
template <typename T>
struct HeadNorm {
  const T* weights;
  float inverse;
  float offset;  // added to the weights
};

// The chunk at `begin` of a row of `size`, normed and rounded to its dtype, as in training, where the norm is
// apart.
template <bool kAligned, typename T>
__device__ Floats<T> load_normed(const T* row, int begin, int size, const HeadNorm<T>& norm) {
  Floats<T> x = unpack<T>(load_chunk<kAligned>(row, begin, size));
  if (norm.weights == nullptr) return x;
  const Floats<T> weight = unpack<T>(load_chunk<kAligned>(norm.weights, begin, size));
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i)
    x.values[i] = to_float(to<T>(x.values[i] * norm.inverse * (weight.values[i] + norm.offset)));
  return x;
}

// Rotates the chunk at `begin` of a head's first half with its partner half a rotation away.
template <bool kAligned, typename T>
__device__ void rotate_chunk(T* target, const T* source, int begin, int half, const float* angles,
                             const HeadNorm<T>& norm) {
  const Floats<T> cosines = load_floats<kAligned, T>(angles, begin, angles == nullptr ? 0 : half);
  const Floats<T> sines = load_floats<kAligned, T>(angles + half, begin, angles == nullptr ? 0 : half);
  const HeadNorm<T> norm_y{norm.weights == nullptr ? nullptr : norm.weights + half, norm.inverse,
                           norm.offset};
  Floats<T> x = load_normed<kAligned>(source, begin, half, norm);
  Floats<T> y = load_normed<kAligned>(source + half, begin, half, norm_y);
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
__device__ T* row_of(const HeadRows& rows, int64_t token, int64_t head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
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
__global__ void __launch_bounds__(kMaxThreads) write_slots(KvWriteParams p) {
  const int64_t token = blockIdx.x, slot = p.slot_mapping[token];
  const int head_dim = static_cast<int>(p.head_dim);
  if (slot < 0 || slot >= p.num_slots) return;
  const auto copy = [&](const KvSlots& cache, const HeadRows& rows, uint32_t before) {
    for_chunks<T>(p.k.heads, head_dim, before, [&](int64_t head, int begin) {
      copy_chunk<kAligned>(slot_of<T>(cache, p, slot, head), row_of<T>(rows, token, head), begin, head_dim);
    });
  };
  copy(p.k_cache, p.k, 0);
  copy(p.v_cache, p.v, num_chunks<T>(p.k.heads, p.head_dim));
}

// What is done to a head of `size` elements, of which the first 2 * half turn.
struct Turn {
  int size, half;
  const float* angles;  // nullptr: to NaN
  float eps, norm_offset;
};

// Calls fn(chunk's first element) for this thread's share of `size` elements of a head.
template <typename T, typename Fn>
__device__ void for_own_chunks(int size, const Fn& fn) {
  // Most heads have one chunk per thread; copies of the body would cost registers.
#pragma unroll 1
  for (int begin = static_cast<int>(threadIdx.x) * kChunk<T>; begin < size;
       begin += static_cast<int>(blockDim.x) * kChunk<T>)
    fn(begin);
}

// Sum of the squares of a head's elements; 0 elements: of a thread without a head.
template <bool kAligned, typename T>
__device__ float sum_squares(const T* head, int size) {
  float sum = 0.0f;
  for_own_chunks<T>(size, [&](int begin) {
    const Floats<T> x = unpack<T>(load_chunk<kAligned>(head, begin, size));
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) sum += x.values[i] * x.values[i];
  });
  return sum_of_row(sum);
}

// Turns one head by the threads of a row of the block, all of which call it; `target` may be `source`.
template <bool kAligned, typename T>
__device__ void turn_head(T* target, const T* source, const Turn& turn, const void* weights, bool has_head) {
  HeadNorm<T> norm{static_cast<const T*>(weights), 1.0f, turn.norm_offset};
  if (weights != nullptr) {
    const float sum = sum_squares<kAligned>(source, has_head ? turn.size : 0);
    // What one thread of the warp writes below, others have read for this sum.
    __syncwarp();
    norm.inverse = 1.0f / sqrtf(sum / static_cast<float>(turn.size) + turn.eps);
  }
  if (!has_head) return;
  for_own_chunks<T>(turn.half, [&](int begin) {
    rotate_chunk<kAligned>(target, source, begin, turn.half, turn.angles, norm);
  });
  const int unturned = turn.size - 2 * turn.half;
  if (norm.weights != nullptr) norm.weights += 2 * turn.half;
  for_own_chunks<T>(unturned, [&](int begin) {
    const Floats<T> x = load_normed<kAligned>(source + 2 * turn.half, begin, unturned, norm);
    store_chunk<kAligned>(target + 2 * turn.half, begin, unturned, pack<T>(x));
  });
}

// Calls fn(head, whether there is one) for this thread's share of `heads` heads, in all threads equally
// often.
template <typename Fn>
__device__ void for_own_heads(int64_t heads, const Fn& fn) {
  for (int64_t first = 0; first < heads; first += blockDim.y) {
    const int64_t head = first + threadIdx.y;
    fn(head < heads ? head : 0, head < heads);
  }
}

// blockDim: threads of a head, heads at once. Two blocks per multiprocessor are enough: for four the compiler
// spilled registers.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads, 2) turn_and_write(RotaryKvWriteParams p) {
  const KvWriteParams& w = p.write;
  const int64_t token = blockIdx.x, slot = w.slot_mapping[token];
  const int head_dim = static_cast<int>(w.head_dim);
  const Turn turn{head_dim, static_cast<int>(p.rotary.rot_dim / 2), angles_of(p.rotary, token), p.rotary.eps,
                  p.rotary.norm_offset};
  for_own_heads(p.q.heads, [&](int64_t head, bool has_head) {
    T* query = row_of<T>(p.q, token, head);
    turn_head<kAligned, T>(query, query, turn, p.rotary.q_norm, has_head);
  });
  if (slot < 0 || slot >= w.num_slots) return;
  // Codes are made of whole heads, once their keys have turned where they are.
  const bool is_plain = w.format == CacheFormat::kPlain;
  for_own_heads(w.k.heads, [&](int64_t head, bool has_head) {
    T* key = row_of<T>(w.k, token, head);
    turn_head<kAligned, T>(is_plain ? slot_of<T>(w.k_cache, w, slot, head) : key, key, turn, p.rotary.k_norm,
                           has_head);
    if (!is_plain) return;
    for_own_chunks<T>(has_head ? head_dim : 0, [&](int begin) {
      copy_chunk<kAligned>(slot_of<T>(w.v_cache, w, slot, head), row_of<T>(w.v, token, head), begin,
                           head_dim);
    });
  });
}

void add_rows(Alignment* alignment, const HeadRows& rows, int64_t element) {
  alignment->add(rows.data).add_bytes(rows.token_stride * element).add_bytes(rows.head_stride * element);
}

void add_rotary(Alignment* alignment, const RotaryParams& p, int64_t element) {
  alignment->add(p.q_norm).add(p.k_norm).add_bytes(p.rot_dim / 2 * element);
  alignment->add(p.cos_sin).add_bytes(p.cos_sin_stride * static_cast<int64_t>(sizeof(float)));
}

void add_cache(Alignment* alignment, const KvWriteParams& p) {
  const int64_t element = dtype_bytes(p.dtype);
  for (const HeadRows& rows : {p.k, p.v}) add_rows(alignment, rows, element);
  alignment->add_bytes(p.head_dim * element);
  if (p.format != CacheFormat::kPlain) return;
  for (const KvSlots& cache : {p.k_cache, p.v_cache}) {
    alignment->add(cache.data)
        .add_bytes(cache.block_stride * element)
        .add_bytes(cache.head_stride * element)
        .add_bytes(cache.slot_stride * element);
  }
}

// One block per token, with a thread per chunk as far as they go.
LaunchShape token_shape(int64_t tokens, int64_t elements, DType dtype) {
  const int64_t warps = ceil_div(ceil_div(elements * dtype_bytes(dtype), 16), 32);
  const int64_t threads = (warps < 1 ? 1 : warps) * 32;
  return {tokens, dim3(static_cast<unsigned>(threads < kMaxThreads ? threads : kMaxThreads))};
}

// One block per token. Threads of a head: a power of two up to a warp, with a pair of chunks each as far as
// they go; their number decides the order in which a head is summed, so it depends on the head alone.
LaunchShape head_shape(const RotaryKvWriteParams& p) {
  const int64_t bytes = (p.write.head_dim + 1) / 2 * dtype_bytes(p.write.dtype);
  int64_t threads = 1;
  while (threads < kWarpSize && threads * 16 < bytes) threads *= 2;
  const int64_t heads = p.q.heads > p.write.k.heads ? p.q.heads : p.write.k.heads,
                per_warp = kWarpSize / threads;
  const int64_t wanted = ceil_div(heads < 1 ? 1 : heads, per_warp) * per_warp, most = kMaxThreads / threads;
  return {p.write.tokens,
          dim3(static_cast<unsigned>(threads), static_cast<unsigned>(wanted < most ? wanted : most))};
}

}  // namespace

void kv_write(const KvWriteParams& p, cudaStream_t stream) {
  if (p.format != CacheFormat::kPlain) return kv_write_codes(p, stream);
  Alignment alignment;
  add_cache(&alignment, p);
  const LaunchShape shape = token_shape(p.tokens, 2 * p.k.heads * p.head_dim, p.dtype);
  with_type(p.dtype, alignment.is_aligned(), [&]<typename T, bool kAligned>() {
    launch("kv_write", write_slots<T, kAligned>, shape, stream, p);
  });
}

void rotary_kv_write(const RotaryKvWriteParams& p, cudaStream_t stream) {
  const int64_t element = dtype_bytes(p.write.dtype);
  Alignment alignment;
  add_cache(&alignment, p.write);
  add_rows(&alignment, p.q, element);
  add_rotary(&alignment, p.rotary, element);
  with_type(p.write.dtype, alignment.is_aligned(), [&]<typename T, bool kAligned>() {
    launch("rotary_kv_write", turn_and_write<T, kAligned>, head_shape(p), stream, p);
  });
  if (p.write.format != CacheFormat::kPlain) kv_write_codes(p.write, stream);
}

}  // namespace splitserve::cuda
