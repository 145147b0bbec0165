// How element-wise kernels share out rows: a block takes a stretch of one row, a thread some chunks of it.
#pragma once

#include "cuda/chunk.cuh"
#include "cuda/launch.h"

namespace splitserve::cuda {

// Chunks per thread: their loads are in flight together.
inline constexpr int kChunksPerThread = 4;

// Longest row, in elements.
inline constexpr int64_t kMaxRow = 1 << 30;

struct RowShape {
  LaunchShape launch;
  uint32_t blocks_per_row;
};

// For `rows` rows of `size` elements of `element` bytes.
inline RowShape row_shape(int64_t rows, int64_t size, int64_t element) {
  constexpr int64_t kWarp = 32, kMaxThreads = 256;
  if (size > kMaxRow) check(cudaErrorInvalidConfiguration, "a row of more than 2^30 elements");
  const int64_t chunks = ceil_div(size * element, 16);
  const int64_t wanted = ceil_div(ceil_div(chunks, kChunksPerThread), kWarp) * kWarp;
  const int64_t threads = wanted < kMaxThreads ? wanted : kMaxThreads;
  const int64_t blocks = chunks == 0 ? 0 : ceil_div(chunks, threads * kChunksPerThread);
  return {{rows * blocks, dim3(static_cast<unsigned>(threads))}, static_cast<uint32_t>(blocks)};
}

// This thread's row.
__device__ inline int64_t row_index(uint32_t blocks_per_row) { return blockIdx.x / blocks_per_row; }

// First element of this thread's j-th chunk within its row.
template <typename T>
__device__ int chunk_begin(uint32_t blocks_per_row, int j) {
  const uint32_t stretch = blockIdx.x % blocks_per_row;
  return static_cast<int>((stretch * kChunksPerThread + j) * blockDim.x + threadIdx.x) * kChunk<T>;
}

}  // namespace splitserve::cuda
