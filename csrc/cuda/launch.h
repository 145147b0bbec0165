// Launches a kernel and checks that the launch was accepted.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace splitserve::cuda {

// Raises RuntimeError "<what>: <CUDA's own words>" unless status is cudaSuccess.
void check(cudaError_t status, const char* what);

// Of the current device.
int device_attribute(cudaDeviceAttr attribute);

struct LaunchShape {
  int64_t blocks;
  dim3 threads;
  int64_t shared_bytes = 0;  // of dynamic shared memory
  unsigned cluster = 1;      // blocks that run together; more than 1 needs compute capability 9.0
};

// Enqueues kernel(arguments...); with no blocks there is nothing to do.
template <typename... Parameters>
void launch(const char* what, void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            Parameters... arguments) {
  if (shape.blocks == 0) return;
  if (shape.blocks > INT32_MAX) check(cudaErrorInvalidConfiguration, what);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = shape.threads;
  config.stream = stream;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = shape.cluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  // Beyond 48 KB a kernel has to be told; it stays told, and telling it is no work for the device.
  constexpr int64_t kAlwaysAllowed = 48 * 1024;
  if (shape.shared_bytes > kAlwaysAllowed) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          what);
  }
  check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace splitserve::cuda
