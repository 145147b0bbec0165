// Sums over the threads that share a row, in an order that depends on their number alone.
#pragma once

#include <cuda_runtime.h>

namespace splitserve::cuda {

inline constexpr unsigned kWholeWarp = 0xffffffffu;
inline constexpr int kWarpSize = 32;

// Sum of `value` over a row's threads, in every one of them. The row's threads are blockDim.x neighbours: a
// power of two up to 32, or whole warps that are the whole block. All threads of the block must call it.
__device__ inline float sum_of_row(float value) {
  const unsigned width = blockDim.x;
  for (unsigned offset = (width < kWarpSize ? width : kWarpSize) / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, offset);
  }
  if (width <= kWarpSize) return value;
  __shared__ float warps[kWarpSize];
  // The sums of an earlier call may still be read.
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float sum = warps[0];
  for (unsigned i = 1; i < width / kWarpSize; ++i) sum += warps[i];
  return sum;
}

}  // namespace splitserve::cuda
