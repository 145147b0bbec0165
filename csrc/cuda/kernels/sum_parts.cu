// Adds up the parts of all ranks, element by element, and rounds once.
#include "cuda/chunk.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int64_t kThreads = 256;
// Parts whose loads a thread has under way together, beside the first.
constexpr int kInFlight = 4;

// A thread adds up as many elements as 16 bytes of a part hold. In a shorter type they are 8 bytes.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) Piece {
  uint32_t words[kCount * sizeof(T) / 4];
};

// The first `left` of kCount elements, or all of them where they are aligned.
template <bool kAligned, typename T, int kCount>
__device__ void load(float (&values)[kCount], const T* from, int64_t left) {
  if constexpr (kAligned) {
    const auto piece = *reinterpret_cast<const Piece<T, kCount>*>(from);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (sizeof(T) == 4) {
        values[i] = std::bit_cast<float>(piece.words[i]);
      } else {
        values[i] = to_float(std::bit_cast<T>(static_cast<uint16_t>(piece.words[i / 2] >> i % 2 * 16)));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = i < left ? to_float(from[i]) : 0.0f;
  }
}

template <bool kAligned, typename T, int kCount>
__device__ void store(T* out, const float (&values)[kCount], int64_t left) {
  if constexpr (kAligned) {
    Piece<T, kCount> piece;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof piece / 4); ++i) {
      if constexpr (sizeof(T) == 4) {
        piece.words[i] = std::bit_cast<uint32_t>(values[i]);
      } else {
        piece.words[i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
      }
    }
    *reinterpret_cast<Piece<T, kCount>*>(out) = piece;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < left) out[i] = to<T>(values[i]);
    }
  }
}

template <int kCount>
__device__ void add(float (&sum)[kCount], const float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum[i] += values[i];
}

// Of the elements from `begin` on, which belong to one row where they are aligned.
template <bool kAligned, typename T, int kCount>
__device__ void load_bias(float (&values)[kCount], const SumPartsParams& p, int64_t begin) {
  const T* bias = static_cast<const T*>(p.bias);
  const int64_t column = (p.first + begin) % p.width;
  if constexpr (kAligned) {
    load<kAligned>(values, bias + column, kCount);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = to_float(bias[(column + i) % p.width]);
  }
}

template <typename T, typename Part, bool kAligned>
__global__ void __launch_bounds__(kThreads) add_parts(SumPartsParams p) {
  constexpr int kCount = kChunk<Part>;
  const int64_t begin = (blockIdx.x * kThreads + threadIdx.x) * kCount, left = p.count - begin;
  if (left <= 0) return;
  const Part* part = static_cast<const Part*>(p.parts) + begin;
  const int64_t stride = p.stride / static_cast<int64_t>(sizeof(Part));
  float sum[kCount];
  load<kAligned>(sum, part, left);
  for (int64_t rank = 1; rank < p.num_parts; rank += kInFlight) {
    float next[kInFlight][kCount];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (rank + j < p.num_parts) load<kAligned>(next[j], part + (rank + j) * stride, left);
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (rank + j < p.num_parts) add(sum, next[j]);
    }
  }
  if (p.bias != nullptr) {
    float bias[kCount];
    load_bias<kAligned, T>(bias, p, begin);
    add(sum, bias);
  }
  store<kAligned>(static_cast<T*>(p.out) + begin, sum, left);
}

}  // namespace

void sum_parts(const SumPartsParams& p, cudaStream_t stream) {
  const int64_t element = dtype_bytes(p.part_dtype);
  const bool aligned = Alignment()
                           .add(p.out)
                           .add(p.parts)
                           .add(p.bias)
                           .add_bytes(p.stride)
                           .add_bytes(p.count * element)
                           .add_bytes(p.first * element)
                           .add_bytes(p.width * element)
                           .is_aligned();
  const LaunchShape shape{ceil_div(ceil_div(p.count * element, 16), kThreads), dim3(kThreads)};
  with_type(p.dtype, aligned, [&]<typename T, bool kAligned>() {
    auto* kernel = p.part_dtype == p.dtype ? add_parts<T, T, kAligned> : add_parts<T, float, kAligned>;
    launch("sum_parts", kernel, shape, stream, p);
  });
}

}  // namespace splitserve::cuda
