// bfloat16 multiplied as floats, where an instruction that multiplies its pairs takes longer than the floats
// do: with the bits of the instruction.
//
// vdpbf16ps adds the second product of a pair first, each rounded by itself, and takes and makes denormals
// zero. So do these steps, while denormals are flushed.
#pragma once

#include "cpu/dot_step.h"
#include "cpu/isa.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <typename T>
inline constexpr bool kIsSplit = false;

#if defined(__AVX512BF16__)
// Lies in memory as BFloat16 does, and is multiplied as floats.
struct SplitBFloat16 : BFloat16 {};
template <>
inline constexpr bool kIsSplit<SplitBFloat16> = true;
#endif

// Treats denormals as the instruction does, for the products of a split T that fn() adds to `sums`, and for
// no others: the compiler, which knows nothing of it, must move none past the switches.
template <typename T, int kRows, int kVecs, typename Fn>
SPLITSERVE_INLINE void as_pairs([[maybe_unused]] Vec (&sums)[kRows][kVecs], const Fn& fn) {
#if defined(__AVX512BF16__)
  if constexpr (kIsSplit<T>) {
    constexpr uint32_t kZeroDenormals = 0x8040;
    const auto hold = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) asm volatile("" : "+v"(sums[i][v]));
      }
    };
    uint32_t usual;
    asm volatile("stmxcsr %0" : "=m"(usual));
    const uint32_t flushed = usual | kZeroDenormals;
    hold();
    asm volatile("ldmxcsr %0" : : "m"(flushed));
    hold();
    fn();
    hold();
    asm volatile("ldmxcsr %0" : : "m"(usual));
    hold();
    return;
  }
#endif
  fn();
}

// Calls fn with an element of the type as which bfloat16 is multiplied.
template <typename Fn>
SPLITSERVE_INLINE void with_bfloat16(const Fn& fn) {
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
  if (multiplies_floats()) return fn(SplitBFloat16{});
#endif
  fn(BFloat16{});
}

}  // namespace

#if defined(__AVX512BF16__)
template <>
struct DotStep<SplitBFloat16> {
  struct Operand {
    Vec even, odd;
  };
  using Shared = float;
  static constexpr int kPair = 2;
  static constexpr int kSize = 2 * kLanes;
  SPLITSERVE_INLINE static Operand load(const BFloat16* p) {
    UintVec pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return {as_float(pairs << 16), as_float(pairs & 0xffff0000u)};
  }
  SPLITSERVE_INLINE static Operand broadcast(const float* p) {
    return {SPLITSERVE_ISA::broadcast(p[0]), SPLITSERVE_ISA::broadcast(p[1])};
  }
  SPLITSERVE_INLINE static Vec accumulate(Vec sum, Operand a, Operand b) {
    return fma(a.even, b.even, fma(a.odd, b.odd, sum));
  }
};
#endif

}  // namespace splitserve::SPLITSERVE_ISA
