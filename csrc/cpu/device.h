// What csrc/bindings has to know of the device it is compiled for: here the CPU.
#pragma once

#include <dlpack/dlpack.h>

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/program.h"

namespace splitserve {

inline constexpr DLDeviceType kDeviceType = kDLCPU;
inline constexpr bool kHasFloat16 = false;
// Blocks of the KV cache are interleaved, see cpu/attention_chunk.h.
inline constexpr bool kInterleavedCache = true;
// The cache may hold codes of latents, see cpu/latent_codes.h.
inline constexpr bool kCodedLatents = true;
// Adapters of bfloat16 lie in pairs, see common/lora.h.
inline constexpr bool kPairedAdapters = true;
// Rows of heads, in whole_attention, begin at multiples of this many bytes.
inline constexpr int64_t kHeadRowBytes = 1;
// Longest row of a norm.
inline constexpr int64_t kMaxNormBytes = INT64_MAX;

// Host memory as kernels see it; nullptr if they cannot.
inline void* reachable_host_memory(void* data) { return data; }

}  // namespace splitserve

// Runs a kernel on the device of a call's tensors.
#define SPLITSERVE_RUN(op, params, device) SPLITSERVE_RUN_KERNEL(op, params)
// The same after check(params) has looked at the ids in memory.
#define SPLITSERVE_RUN_CHECKED(op, check, params, device) \
  splitserve::run_kernel(params, [](const auto& p) {      \
    check(p);                                             \
    SPLITSERVE_CALL_KERNEL(op, p);                        \
  })
