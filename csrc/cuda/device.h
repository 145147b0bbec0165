// What csrc/bindings has to know of the device it is compiled for: here a CUDA device.
#pragma once

#include <dlpack/dlpack.h>

#include "cuda/kernels.h"

namespace splitserve {

#if defined(SPLITSERVE_EMULATED)
// The tests run the kernels on the CPU, see tests/gpu/emulated.
inline constexpr DLDeviceType kDeviceType = kDLCPU;
#else
inline constexpr DLDeviceType kDeviceType = kDLCUDA;
#endif
inline constexpr bool kHasFloat16 = true;
// Blocks of the KV cache hold each token's row in one piece.
inline constexpr bool kInterleavedCache = false;
inline constexpr bool kCodedLatents = false;
inline constexpr bool kPairedAdapters = false;
// Rows of heads, in whole_attention, begin at multiples of this many bytes, which are copied at once.
inline constexpr int64_t kHeadRowBytes = 16;
// A thread block keeps a row in its registers: 1024 threads with 4 chunks of 16 bytes.
inline constexpr int64_t kMaxNormBytes = 65536;

namespace cuda {

// Makes a device current while kernels are launched on it, on the stream that torch uses there.
class OnDevice {
 public:
  explicit OnDevice(DLDevice device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  cudaStream_t stream() const { return stream_; }

 private:
  int previous_ = 0;
  int current_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace cuda

// Host memory as kernels see it; nullptr if it is not pinned.
void* reachable_host_memory(void* data);

}  // namespace splitserve

// Runs a kernel on the device of a call's tensors.
#define SPLITSERVE_RUN(op, params, device)              \
  do {                                                  \
    const splitserve::cuda::OnDevice on_device(device); \
    splitserve::cuda::op(params, on_device.stream());   \
  } while (false)
// Ids are on the device: kernels check them where they use them.
#define SPLITSERVE_RUN_CHECKED(op, check, params, device) SPLITSERVE_RUN(op, params, device)
