// bfloat16 multiplied as floats, where an instruction that multiplies its pairs takes longer than the floats
// do: with the bits of the instruction.
//
// vdpbf16ps adds the second product of a pair first, each rounded by itself, and takes and makes denormals
// zero. So do these steps, while denormals are flushed.
#pragma once

#include "cpu/denormal_mode.h"
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

// Calls fn(), which adds products of a T to `sums` and nothing else, with denormals treated as the
// instruction does.
template <typename T, int kRows, int kVecs, typename Fn>
SPLITSERVE_INLINE void as_pairs([[maybe_unused]] Vec (&sums)[kRows][kVecs], const Fn& fn) {
#if defined(__AVX512BF16__)
  if constexpr (kIsSplit<T>) {
    const DenormalMode mode;
    mode.enter(sums);
    fn();
    mode.leave(sums);
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
