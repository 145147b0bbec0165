// Products of int8 with weights of int8; and how activations become int8: a thread block per row.
#include "cuda/coded_linear.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 256;

// The largest magnitude of the block's row, in every thread, from the largest bits of its own: magnitudes are
// ordered as these are, what is no number last.
__device__ inline float largest_of_row(uint32_t bits) {
  __shared__ uint32_t warps[kThreads / kWarpSize];
  for (unsigned offset = kWarpSize / 2; offset > 0; offset /= 2) {
    bits = max(bits, __shfl_xor_sync(kWholeWarp, bits, offset));
  }
  if (threadIdx.x % kWarpSize == 0) warps[threadIdx.x / kWarpSize] = bits;
  __syncthreads();
  for (int i = 0; i < kThreads / kWarpSize; ++i) bits = max(bits, warps[i]);
  return std::bit_cast<float>(bits);
}

// Codes of a chunk.
template <typename T>
struct alignas(kChunk<T>) Codes {
  int8_t values[kChunk<T>];
};

// The same arithmetic as on a CPU: adding 1.5 * 2^23 leaves no bits for a fraction.
__device__ inline int8_t rounded(float scaled) {
  constexpr float kNoFraction = 12582912.0f;
  const float moved = scaled + kNoFraction;
  return static_cast<int8_t>(std::bit_cast<uint32_t>(moved) - std::bit_cast<uint32_t>(kNoFraction));
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) code_row(CodeRowsParams p) {
  const T* x = static_cast<const T*>(p.x) + blockIdx.x * p.x_stride;
  int8_t* codes = p.codes + blockIdx.x * p.codes_stride;
  const int depth = static_cast<int>(p.depth), first = static_cast<int>(threadIdx.x) * kChunk<T>;
  constexpr int kEvery = kThreads * kChunk<T>;
  uint32_t bits = 0;
  for (int k = first; k < depth; k += kEvery) {
    const Floats<T> some = unpack<T>(load_chunk<kAligned>(x, k, depth));
#pragma unroll
    for (const float value : some.values) bits = max(bits, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  }
  const float largest = largest_of_row(bits);
  // Smaller numbers are worth nothing beside 127 times the smallest scale whose inverse is finite.
  const bool has_codes = largest > 1e-36f && largest <= 3.4028234e38f;
  const float inverse = has_codes ? 127.0f / largest : 0.0f;
  for (int k = first; k < depth; k += kEvery) {
    const Floats<T> some = unpack<T>(load_chunk<kAligned>(x, k, depth));
    Codes<T> own;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) own.values[i] = has_codes ? rounded(some.values[i] * inverse) : 0;
    if constexpr (kAligned) {
      *reinterpret_cast<Codes<T>*>(codes + k) = own;
    } else {
      for (int i = 0; i < kChunk<T> && k + i < depth; ++i) codes[k + i] = own.values[i];
    }
  }
  // What is infinite makes the row NaN: it times 0.
  if (threadIdx.x == 0) p.scales[blockIdx.x] = largest / 127.0f;
}

}  // namespace

void code_rows(const CodeRowsParams& p, cudaStream_t stream) {
  const int64_t element = dtype_bytes(p.dtype);
  const bool is_aligned = Alignment()
                              .add(p.codes)
                              .add(p.x)
                              .add_bytes(p.codes_stride)
                              .add_bytes(p.x_stride * element)
                              .add_bytes(p.depth * element)
                              .is_aligned();
  with_type(p.dtype, is_aligned, [&]<typename T, bool kAligned>() {
    launch("code_rows", code_row<T, kAligned>, {p.rows, dim3(kThreads)}, stream, p);
  });
}

void coded_linear_dot(const CodedLinearParams& p, cudaStream_t stream) {
  if (takes_warpgroups(p)) return coded_wide_dot(p, stream);
  run_coded_linear<DotProduct>(p, stream);
}

}  // namespace splitserve::cuda
