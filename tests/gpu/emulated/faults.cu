// Kernels with a fault each, or without it: what test_emulation.py asks the emulation to find.
//   faults <name of a kernel>
#include <cuda_runtime.h>

#include "emulated_intrinsics.h"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 64;

__device__ float4* rows() { return reinterpret_cast<float4*>(dynamic_shared()); }

// Every thread reads what its neighbour wrote.
template <bool kWaits>
__global__ void pass_on(float* out) {
  __shared__ float values[kThreads];
  const int i = static_cast<int>(threadIdx.x);
  values[i] = static_cast<float>(i);
  if (kWaits) __syncthreads();
  out[i] = values[(i + 1) % kThreads];
}

// The lanes of a warp read what lane 0 wrote before they shuffled.
template <bool kWaits>
__global__ void pass_on_in_warp(float* out) {
  __shared__ float value;
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) value = 1.0f;
  float sum = __shfl_xor_sync(~0u, 1.0f, 1);
  if (kWaits) __syncwarp();
  out[i] = sum + value;
}

// A copy into a row that others have not read yet.
template <bool kWaits>
__global__ void fill_early(float* out, const float4* in) {
  const int i = static_cast<int>(threadIdx.x);
  rows()[i] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
  __syncthreads();
  if (!kWaits) copy_async(rows() + i, in + i, 16);
  const float read = rows()[(i + 1) % kThreads].x;
  if (kWaits) __syncthreads();
  if (kWaits) copy_async(rows() + i, in + i, 16);
  commit_copies();
  __syncthreads();
  wait_for_copies<0>();
  out[i] = read;
}

__global__ void load_unaligned(float* out) {
  out[threadIdx.x * 4] = reinterpret_cast<const float4*>(out + 1)[threadIdx.x].y;
}

__global__ void copy_unaligned(float* out) { copy_async(rows(), out + 1, 16); }

template <typename... Parameters>
void launch(int threads, void (*kernel)(Parameters...), std::type_identity_t<Parameters>... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = sizeof(float4) * kThreads;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace
}  // namespace splitserve::cuda

int main(int, char** arguments) {
  using namespace splitserve::cuda;
  const auto is_asked = [&](const char* name) { return std::strcmp(arguments[1], name) == 0; };
  alignas(16) float out[kThreads * 4 + 4] = {};
  alignas(16) float4 in[kThreads] = {};
  if (is_asked("pass_on")) launch(kThreads, pass_on<true>, out);
  if (is_asked("pass_on_without_barrier")) launch(kThreads, pass_on<false>, out);
  if (is_asked("pass_on_in_warp")) launch(32, pass_on_in_warp<true>, out);
  if (is_asked("pass_on_in_warp_without_barrier")) launch(32, pass_on_in_warp<false>, out);
  if (is_asked("fill_late")) launch(kThreads, fill_early<true>, out, in);
  if (is_asked("fill_early")) launch(kThreads, fill_early<false>, out, in);
  if (is_asked("load_unaligned")) launch(kThreads, load_unaligned, out);
  if (is_asked("copy_unaligned")) launch(kThreads, copy_unaligned, out);
  // 2: somebody has read what is no number.
  for (int i = 0; i < kThreads; ++i) {
    if (out[i] != out[i]) return 2;
  }
}
