// Detects what the CPU can do, and holds the two settings of the library: instruction set and threads.
#include "cpu/isa.h"

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "common/check.h"
#include "cpu/detect_isa.h"

namespace splitserve {
namespace {

// Whose kernels this library has: all of them, or in a build for one machine those of its processor.
#ifndef SPLITSERVE_OLDEST_ISA
#define SPLITSERVE_OLDEST_ISA kPortable
#if SPLITSERVE_X86
#define SPLITSERVE_NEWEST_ISA kAmx
#elif SPLITSERVE_ARM
#define SPLITSERVE_NEWEST_ISA kNeonBf16
#else
#define SPLITSERVE_NEWEST_ISA kPortable
#endif
#endif
constexpr Isa kOldest = Isa::SPLITSERVE_OLDEST_ISA, kNewest = Isa::SPLITSERVE_NEWEST_ISA;

const Isa kBest = std::min(detect_isa(), kNewest);
std::atomic<Isa> g_isa{kBest};
const bool kHasAvxVnni = detect_avx_vnni(kBest), kHasAvx512Vnni = detect_avx512_vnni(kBest);
std::atomic<bool> g_uses_vnni{true};
const bool kHasSlowPairs = detect_slow_pairs(kBest);
std::atomic<bool> g_multiplies_floats{kHasSlowPairs};

const char* name_of(Isa isa) { return kIsaNames[static_cast<int>(isa)]; }

void check_built() {
  if (kBest >= kOldest) return;
  TVM_FFI_THROW(RuntimeError) << "the kernels were built for " << name_of(kOldest)
                              << " alone, and this processor runs " << name_of(kBest)
                              << ": build them again, here or with SPLITSERVE_NATIVE=0";
}

void set_uses_vnni(bool is_used) { g_uses_vnni.store(is_used, std::memory_order_relaxed); }

void set_multiplies_floats(bool is_used) {
  SPLITSERVE_CHECK_VALUE(kHasSlowPairs || !is_used,
                         "is_used: this processor multiplies bfloat16 as fast, or not at all");
  g_multiplies_floats.store(is_used, std::memory_order_relaxed);
}

constexpr int kMaxThreads = 1024;

// The CPUs this process may run on, which under taskset or a container's cpuset are fewer than the machine
// has.
int allowed_cpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return 1;
  return std::clamp(CPU_COUNT(&cpus), 1, kMaxThreads);
}

std::atomic<int> g_num_threads{allowed_cpus()};

tvm::ffi::String cpu_isa() {
  check_built();
  return name_of(current_isa());
}

tvm::ffi::Array<tvm::ffi::String> cpu_isas() {
  check_built();
  tvm::ffi::Array<tvm::ffi::String> names;
  for (int i = static_cast<int>(kOldest); i <= static_cast<int>(kBest); ++i) names.push_back(kIsaNames[i]);
  return names;
}

void set_isa(const tvm::ffi::String& name) {
  for (int i = static_cast<int>(kOldest); i <= static_cast<int>(kBest); ++i) {
    if (name == kIsaNames[i]) {
      g_isa.store(static_cast<Isa>(i), std::memory_order_relaxed);
      return;
    }
  }
  TVM_FFI_THROW(ValueError) << "name: no kernels here run '" << name << "' on this processor";
}

void set_num_threads(int64_t num) {
  SPLITSERVE_CHECK_VALUE(num >= 1 && num <= kMaxThreads, "num: expected 1 to 1024 threads, got " << num);
  g_num_threads.store(static_cast<int>(num), std::memory_order_relaxed);
}

int64_t get_num_threads() { return num_threads(); }

}  // namespace

bool uses_vnni() {
  if (!g_uses_vnni.load(std::memory_order_relaxed)) return false;
#if SPLITSERVE_X86
  if (current_isa() == Isa::kAvx2) return kHasAvxVnni;
  if (current_isa() == Isa::kAvx512) return kHasAvx512Vnni;
#endif
  return false;
}

bool multiplies_floats() { return g_multiplies_floats.load(std::memory_order_relaxed); }

Isa current_isa() { return g_isa.load(std::memory_order_relaxed); }

int num_threads() { return g_num_threads.load(std::memory_order_relaxed); }

}  // namespace splitserve

SPLITSERVE_EXPORT(cpu_isa, splitserve::cpu_isa);
SPLITSERVE_EXPORT(cpu_isas, splitserve::cpu_isas);
SPLITSERVE_EXPORT(set_isa, splitserve::set_isa);
SPLITSERVE_EXPORT(uses_vnni, splitserve::uses_vnni);
SPLITSERVE_EXPORT(set_uses_vnni, splitserve::set_uses_vnni);
SPLITSERVE_EXPORT(multiplies_floats, splitserve::multiplies_floats);
SPLITSERVE_EXPORT(set_multiplies_floats, splitserve::set_multiplies_floats);
SPLITSERVE_EXPORT(set_num_threads, splitserve::set_num_threads);
SPLITSERVE_EXPORT(get_num_threads, splitserve::get_num_threads);
