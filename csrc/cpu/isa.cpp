// Detects what the CPU can do, and holds the two settings of the library: instruction set and threads.
#include "cpu/isa.h"

#include <sched.h>
#if SPLITSERVE_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "common/check.h"

namespace splitserve {
namespace {

constexpr std::array<const char*, 5> kNames{"portable", "avx2", "avx512", "avx512_bf16", "amx"};

#if SPLITSERVE_X86
// Whether the processor multiplies tiles and the system lets this process use them: their 8 KiB
// are more than it saves for every process. It refuses if a thread's stack for signals is too small for them,
// and from then on it refuses such stacks.
bool may_use_tiles() {
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
  constexpr int kRequestPermission = 0x1023, kTileData = 18;    // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kNeeded) != kNeeded) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

Isa detect() {
#if SPLITSERVE_X86
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kPortable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx2;
  }
  // Cooper Lake alone has the first and not the second.
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512vnni")) {
    return Isa::kAvx512;
  }
  return may_use_tiles() ? Isa::kAmx : Isa::kAvx512Bf16;
#else
  return Isa::kPortable;
#endif
}

const Isa kBest = detect();
std::atomic<Isa> g_isa{kBest};

constexpr int kMaxThreads = 1024;

// The CPUs this process may run on, which under taskset or a container's cpuset are fewer than the machine
// has.
int allowed_cpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return 1;
  return std::clamp(CPU_COUNT(&cpus), 1, kMaxThreads);
}

std::atomic<int> g_num_threads{allowed_cpus()};

tvm::ffi::String cpu_isa() { return kNames[static_cast<size_t>(current_isa())]; }

tvm::ffi::String best_cpu_isa() { return kNames[static_cast<size_t>(kBest)]; }

void set_isa(const tvm::ffi::String& name) {
  for (size_t i = 0; i <= static_cast<size_t>(kBest); ++i) {
    if (name == kNames[i]) {
      g_isa.store(static_cast<Isa>(i), std::memory_order_relaxed);
      return;
    }
  }
  TVM_FFI_THROW(ValueError) << "name: this CPU has no instruction set '" << name << "'";
}

void set_num_threads(int64_t num) {
  SPLITSERVE_CHECK_VALUE(num >= 1 && num <= kMaxThreads, "num: expected 1 to 1024 threads, got " << num);
  g_num_threads.store(static_cast<int>(num), std::memory_order_relaxed);
}

int64_t get_num_threads() { return num_threads(); }

}  // namespace

Isa current_isa() { return g_isa.load(std::memory_order_relaxed); }

int num_threads() { return g_num_threads.load(std::memory_order_relaxed); }

}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(cpu_isa, splitserve::cpu_isa);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(best_cpu_isa, splitserve::best_cpu_isa);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_isa, splitserve::set_isa);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_num_threads, splitserve::set_num_threads);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(get_num_threads, splitserve::get_num_threads);
