// Which instruction set can this processor run, as far as the system lets this process?
#pragma once

#include "cpu/isa.h"

#if SPLITSERVE_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif SPLITSERVE_ARM && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace splitserve {

// By Isa.
#if SPLITSERVE_X86
inline constexpr const char* kIsaNames[]{"portable", "avx2", "avx512", "avx512_bf16", "amx"};
#elif SPLITSERVE_ARM
inline constexpr const char* kIsaNames[]{"portable", "neon_dot", "neon_bf16"};
#else
inline constexpr const char* kIsaNames[]{"portable"};
#endif

#if SPLITSERVE_X86
// Whether the processor multiplies tiles and the system lets this process use them: their 8 KiB
// are more than it saves for every process. It refuses if a thread's stack for signals is too small for them,
// and from then on it refuses such stacks.
inline bool may_use_tiles() {
#if defined(SPLITSERVE_EMULATES_AMX)
  return true;
#else
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
  constexpr int kRequestPermission = 0x1023, kTileData = 18;    // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kNeeded) != kNeeded) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#endif
}
#endif

// Of processors that run `best`.
inline bool detect_avx_vnni([[maybe_unused]] Isa best) {
#if SPLITSERVE_X86
  if (best < Isa::kAvx2) return false;
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvxVnni) != 0;
#else
  return false;
#endif
}

inline bool detect_avx512_vnni([[maybe_unused]] Isa best) {
#if SPLITSERVE_X86
  if (best < Isa::kAvx512) return false;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

// Of processors that run AVX-512 BF16: those of Intel take two cycles for a product of pairs, in which they
// could make four of floats.
inline bool detect_slow_pairs([[maybe_unused]] Isa best) {
#if SPLITSERVE_X86
  if (best < Isa::kAvx512Bf16) return false;
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

inline Isa detect_isa() {
#if SPLITSERVE_X86
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kPortable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx2;
  }
  // Cooper Lake alone has the first and not the second.
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512vbmi2") || !__builtin_cpu_supports("avx512vnni")) {
    return Isa::kAvx512;
  }
  return may_use_tiles() ? Isa::kAmx : Isa::kAvx512Bf16;
#elif SPLITSERVE_ARM && defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20, kInt8Matrices = 1ul << 13, kBFloat16 = 1ul << 14;
  if ((getauxval(AT_HWCAP) & kDotProduct) == 0) return Isa::kPortable;
  constexpr unsigned long kBoth = kInt8Matrices | kBFloat16;
  return (getauxval(AT_HWCAP2) & kBoth) == kBoth ? Isa::kNeonBf16 : Isa::kNeonDot;
#else
  return Isa::kPortable;
#endif
}

}  // namespace splitserve
