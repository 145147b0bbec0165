// Matrix products of a warpgroup, four warps: of compute capability 9.0 alone (sm_90a). wgmma rounds as mma
// does: the bits were the same on an H200.
//
// One operand is in registers, as for mma: each warp has 16 rows of it. The other is in shared memory, as
// row_lines.h says. What cp.async has copied there, and threads have waited for, is read without a fence
// between proxies, as CUTLASS does.
#pragma once

#include "cuda/intrinsics.cuh"
#include "cuda/row_lines.h"

#if defined(SPLITSERVE_EMULATED)
#include "emulated_warpgroup.h"
#else

namespace splitserve::cuda {

// What was computed for these registers is in them before what follows, and what follows reads them anew: a
// compiler doesn't know that a warpgroup's products are there only when they have been waited for.
template <typename... Arrays>
__device__ inline void keep(Arrays&... registers) {
  const auto keep_some = [](auto& some) {
#pragma unroll
    for (auto& word : some) {
      if constexpr (std::same_as<std::remove_reference_t<decltype(word)>, float>) {
        asm volatile("" : "+f"(word)::"memory");
      } else {
        asm volatile("" : "+r"(word)::"memory");
      }
    }
  };
  (keep_some(registers), ...);
}

// Before a warpgroup multiplies, with operands and sums in these arrays of registers.
template <typename... Arrays>
__device__ inline void warpgroup_begin(Arrays&... registers) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  keep(registers...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Waits for the products since warpgroup_begin().
template <typename Sums>
__device__ inline void warpgroup_finish(Sums& sums) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  keep(sums);
#endif
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where rows of kBytes lie, from some place of a line on. In a cluster, an address also says in which thread
// block.
template <int kBytes>
__device__ inline uint64_t rows_descriptor(const char* rows) {
  constexpr uint64_t kNextEight = 8 * kBytes / 16, kSwizzling = kBytes == 128 ? 1 : 2;
  return (shared_address(rows) & 0x3ffff) / 16 | uint64_t{1} << 16 | kNextEight << 32 | kSwizzling << 62;
}

#define SPLITSERVE_EIGHT(C, i) \
  C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define SPLITSERVE_OPERANDS                                                                    \
  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows_descriptor<kBytes>(rows + 32 * index)), \
      "r"(adds ? 1 : 0)
// The instruction with 64 or 128 rows in shared memory.
#define SPLITSERVE_WGMMA_64(KIND, FACTORS, C)                                                            \
  asm volatile(                                                                                          \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"                                                 \
      "wgmma.mma_async.sync.aligned.m64n64" KIND                                                         \
      " {"                                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                   \
      "}, {%32, %33, %34, %35}, %36, adds" FACTORS ";\n}"                                                \
      : SPLITSERVE_EIGHT(C, 0), SPLITSERVE_EIGHT(C, 8), SPLITSERVE_EIGHT(C, 16), SPLITSERVE_EIGHT(C, 24) \
      : SPLITSERVE_OPERANDS)
#define SPLITSERVE_WGMMA_128(KIND, FACTORS, C)                                                             \
  asm volatile(                                                                                            \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"                                                   \
      "wgmma.mma_async.sync.aligned.m64n128" KIND                                                          \
      " {"                                                                                                 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                             \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                   \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                   \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                     \
      "}, {%64, %65, %66, %67}, %68, adds" FACTORS ";\n}"                                                  \
      : SPLITSERVE_EIGHT(C, 0), SPLITSERVE_EIGHT(C, 8), SPLITSERVE_EIGHT(C, 16), SPLITSERVE_EIGHT(C, 24),  \
        SPLITSERVE_EIGHT(C, 32), SPLITSERVE_EIGHT(C, 40), SPLITSERVE_EIGHT(C, 48), SPLITSERVE_EIGHT(C, 56) \
      : SPLITSERVE_OPERANDS)

#endif

// d = a * b or, if it adds, d += a * b: a is 64 x 16 of bfloat16 or float16, 64 x 32 of int8, b the index-th
// 32 bytes of kRows rows that have kBytes, and d is 64 x kRows in float or int32, of which a lane has for
// every 8 rows what mma gives it for 8 columns.
template <typename Element, int kRows, int kBytes, typename Sum>
__device__ inline void warpgroup_mma(Sum (&d)[kRows / 2], const uint32_t (&a)[4], const char* rows, int index,
                                     bool adds) {
  static_assert(kRows == 64 || kRows == 128);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SPLITSERVE_WGMMA(KIND, FACTORS, C)  \
  if constexpr (kRows == 64) {              \
    SPLITSERVE_WGMMA_64(KIND, FACTORS, C);  \
  } else {                                  \
    SPLITSERVE_WGMMA_128(KIND, FACTORS, C); \
  }
  if constexpr (std::same_as<Element, int8_t>) {
    SPLITSERVE_WGMMA("k32.s32.s8.s8", "", "+r")
  } else if constexpr (std::same_as<Element, BFloat16>) {
    SPLITSERVE_WGMMA("k16.f32.bf16.bf16", ", 1, 1, 0", "+f")
  } else {
    SPLITSERVE_WGMMA("k16.f32.f16.f16", ", 1, 1, 0", "+f")
  }
#undef SPLITSERVE_WGMMA
#endif
}

}  // namespace splitserve::cuda

#endif
