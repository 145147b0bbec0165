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

// The same arithmetic as on a CPU: adding 1.5 * 2^23 leaves no bits for a fraction.
template <typename T>
__global__ void __launch_bounds__(kThreads) code_row(CodeRowsParams p) {
  const T* x = static_cast<const T*>(p.x) + blockIdx.x * p.x_stride;
  int8_t* codes = p.codes + blockIdx.x * p.codes_stride;
  const int depth = static_cast<int>(p.depth);
  uint32_t bits = 0;
  for (int k = static_cast<int>(threadIdx.x); k < depth; k += kThreads) {
    bits = max(bits, std::bit_cast<uint32_t>(to_float(x[k])) & 0x7fffffffu);
  }
  const float largest = largest_of_row(bits);
  // Smaller numbers are worth nothing beside 127 times the smallest scale whose inverse is finite.
  const bool has_codes = largest > 1e-36f && largest <= 3.4028234e38f;
  const float inverse = 127.0f / largest;
  constexpr float kNoFraction = 12582912.0f;
  for (int k = static_cast<int>(threadIdx.x); k < depth; k += kThreads) {
    const float scaled = to_float(x[k]) * inverse + kNoFraction;
    const uint32_t whole = std::bit_cast<uint32_t>(scaled) - std::bit_cast<uint32_t>(kNoFraction);
    codes[k] = has_codes ? static_cast<int8_t>(whole) : int8_t{0};
  }
  // What is infinite makes the row NaN: it times 0.
  if (threadIdx.x == 0) p.scales[blockIdx.x] = largest / 127.0f;
}

}  // namespace

void code_rows(const CodeRowsParams& p, cudaStream_t stream) {
  with_type(p.dtype, false, [&]<typename T, bool>() {
    launch("code_rows", code_row<T>, {p.rows, dim3(kThreads)}, stream, p);
  });
}

void coded_linear_dot(const CodedLinearParams& p, cudaStream_t stream) {
  run_coded_linear<DotProduct>(p, stream);
}

}  // namespace splitserve::cuda
