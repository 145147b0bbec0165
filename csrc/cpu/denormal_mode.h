// Treating denormals as an instruction that multiplies pairs of bfloat16 does: as zeros, operands and
// results.
#pragma once

#include "cpu/vec.h"

#if defined(__AVX512BF16__)
namespace splitserve::SPLITSERVE_ISA {

// How this thread treats denormals, for products that are added to `sums`: vectors, in arrays. The compiler,
// which knows nothing of it, moves past a change neither a product whose sum goes through it nor what is
// stored; other sums may not be in registers then.
class DenormalMode {
 public:
  SPLITSERVE_INLINE DenormalMode() {
    asm volatile("stmxcsr %0" : "=m"(usual_));
    flushing_ = usual_ | kFlush;
  }
  template <typename Sums>
  SPLITSERVE_INLINE void enter(Sums& sums) const {
    change_to(flushing_, sums);
  }
  template <typename Sums>
  SPLITSERVE_INLINE void leave(Sums& sums) const {
    change_to(usual_, sums);
  }

 private:
  // Results that are denormal become zero, and operands are taken as such.
  static constexpr uint32_t kFlush = 0x8040;

  template <typename Sums>
  SPLITSERVE_INLINE static void change_to(const uint32_t& mode, Sums& sums) {
    hold(sums);
    asm volatile("ldmxcsr %0" : : "m"(mode) : "memory");
    hold(sums);
  }
  SPLITSERVE_INLINE static void hold(Vec& sum) { asm volatile("" : "+v"(sum)); }
  template <typename Sum, int kCount>
  SPLITSERVE_INLINE static void hold(Sum (&sums)[kCount]) {
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) hold(sums[i]);
  }

  uint32_t usual_, flushing_;
};

}  // namespace splitserve::SPLITSERVE_ISA
#endif
