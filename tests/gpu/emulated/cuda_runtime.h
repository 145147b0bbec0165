// As much of the CUDA runtime and of its C++ dialect as the kernels use, on fibers of the CPU; see fibers.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <type_traits>

#include "fibers.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (::emulated::self().index)
#define blockIdx (::emulated::self().block->index)

namespace emulated {

// No macro: members of the launch configuration have the same names.
template <Index3 Launch::* kShape, unsigned Index3::* kAxis>
struct ShapeValue {
  operator unsigned() const { return launch_shape().*kShape.*kAxis; }
};
template <Index3 Launch::* kShape>
struct ShapeValues {
  ShapeValue<kShape, &Index3::x> x;
  ShapeValue<kShape, &Index3::y> y;
  ShapeValue<kShape, &Index3::z> z;
};

}  // namespace emulated

inline constexpr emulated::ShapeValues<&emulated::Launch::threads> blockDim{};
inline constexpr emulated::ShapeValues<&emulated::Launch::grid> gridDim{};

struct dim3 : emulated::Index3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : emulated::Index3{x_, y_, z_} {}
};

struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Threads.

inline void __syncthreads() { emulated::arrive_and_wait(emulated::self().block->barrier); }
inline void __syncwarp(unsigned = ~0u) { emulated::arrive_and_wait(emulated::self().warp->barrier); }

inline int __syncthreads_or(int predicate) {
  emulated::Block& block = *emulated::self().block;
  block.votes |= predicate != 0;
  __syncthreads();
  const int result = block.votes;
  emulated::arrive_and_wait(block.barrier, [&block] { block.votes = 0; });
  return result;
}

inline int __syncthreads_count(int predicate) {
  emulated::Block& block = *emulated::self().block;
  block.votes += predicate != 0;
  __syncthreads();
  const int result = block.votes;
  emulated::arrive_and_wait(block.barrier, [&block] { block.votes = 0; });
  return result;
}

namespace emulated {

// Gives every lane the value of the lane it names.
template <typename T>
EMULATED_UNSEEN T from_lane(T value, int source) {
  struct Slot {
    T value;
    int source;
    T result;
  } slot{value, source, value};
  Warp& warp = *self().warp;
  warp.slots[self().lane] = &slot;
  exchange(warp.barrier, [&warp]() EMULATED_UNSEEN {
    for (void* lane : warp.slots) {
      auto* taker = static_cast<Slot*>(lane);
      if (taker) taker->result = static_cast<Slot*>(warp.slots[taker->source])->value;
    }
  });
  return slot.result;
}

}  // namespace emulated

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return emulated::from_lane(value, emulated::self().lane ^ mask);
}
template <typename T>
T __shfl_sync(unsigned, T value, int source, int = 32) {
  return emulated::from_lane(value, source & 31);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int delta, int = 32) {
  const int lane = emulated::self().lane;
  return emulated::from_lane(value, lane + delta < 32 ? lane + delta : lane);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int delta, int = 32) {
  const int lane = emulated::self().lane;
  return emulated::from_lane(value, lane >= delta ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    bits |= static_cast<unsigned>(emulated::from_lane(predicate != 0, lane)) << lane;
  }
  return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
[[noreturn]] inline void __trap() { abort(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __ldg(const T* at) {
  return *at;
}
// The quick forms; here they are exact.
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }

// Bytes of y:x that the nibbles of the selector name; none of the kernels' asks for signs.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  }
  return result;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

using std::max;
using std::min;

// Host side.

using cudaStream_t = void*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorUnknown = 999
};
inline const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
inline const char* cudaGetErrorName(cudaError_t) { return "emulated"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
struct cudaPointerAttributes {
  cudaMemoryType type;
  void* devicePointer;
};
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {cudaMemoryTypeHost, const_cast<void*>(pointer)};
  return cudaSuccess;
}

namespace emulated {

// Of an H100, in bytes per thread block; the second has to be asked for.
inline constexpr int kSharedBytes = 48 * 1024, kMostSharedBytes = 227 * 1024;
inline constexpr int kSharedBytesOfAll = 228 * 1024;
inline constexpr unsigned kMostThreads = 1024, kMostBlocks = 0x7fffffff, kMostCluster = 8;

// Of the emulated GPU, the first number.
inline int& compute_capability() {
  static int major = 9;
  return major;
}

// What kernels have asked for.
inline std::map<const void*, int>& shared_bytes_asked() {
  static std::map<const void*, int> asked;
  return asked;
}

}  // namespace emulated

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor
};
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 3;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = emulated::compute_capability();
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = emulated::kSharedBytesOfAll;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = emulated::kMostSharedBytes;
      break;
  }
  return cudaSuccess;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  if (bytes > emulated::kMostSharedBytes) return cudaErrorInvalidValue;
  emulated::shared_bytes_asked()[reinterpret_cast<const void*>(kernel)] = bytes;
  return cudaSuccess;
}

enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

template <typename... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               std::type_identity_t<Parameters>... arguments) {
  emulated::Launch launch{config->gridDim, config->blockDim, 1,
                          static_cast<int64_t>(config->dynamicSmemBytes)};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      launch.cluster = config->attrs[i].val.clusterDim.x;
    }
  }
  const auto asked = emulated::shared_bytes_asked().find(reinterpret_cast<const void*>(kernel));
  const int allowed = asked == emulated::shared_bytes_asked().end() ? 0 : asked->second;
  if (launch.shared_bytes > std::max(allowed, emulated::kSharedBytes)) return cudaErrorInvalidValue;
  const emulated::Index3& threads = launch.threads;
  if (threads.x * threads.y * threads.z - 1 >= emulated::kMostThreads) return cudaErrorInvalidConfiguration;
  if (launch.grid.x - 1 >= emulated::kMostBlocks) return cudaErrorInvalidConfiguration;
  if (launch.cluster > emulated::kMostCluster || launch.grid.x % launch.cluster != 0)
    return cudaErrorInvalidConfiguration;
  emulated::run(launch, [&] { kernel(arguments...); });
  return cudaSuccess;
}
