// Run-time choice of the instruction set and of the number of threads.
#pragma once

#if defined(__x86_64__)
#define SPLITSERVE_X86 1
#else
#define SPLITSERVE_X86 0
#endif
#if defined(__aarch64__)
#define SPLITSERVE_ARM 1
#else
#define SPLITSERVE_ARM 0
#endif

namespace splitserve {

// Ordered: a CPU that has one of them has all before it.
#if SPLITSERVE_X86
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };
#elif SPLITSERVE_ARM
// Every 64-bit ARM has NEON, so the portable kernels are compiled for it.
enum class Isa { kPortable, kNeonDot, kNeonBf16 };
#else
enum class Isa { kPortable };
#endif

Isa current_isa();
int num_threads();

// Whether kernels of avx2 or avx512, whichever is current, add up products of integers by instructions that
// not all processors with that instruction set have, with the bits that they have without them.
bool uses_vnni();

// Whether kernels of avx512_bf16 multiply floats in place of bfloat16 where that is faster, with the same
// bits: Intel's processors add up half as many products of bfloat16 as of floats in the same time, AMD's
// twice as many.
bool multiplies_floats();

}  // namespace splitserve

// SPLITSERVE_DECLARE_KERNEL names a kernel in every namespace it is compiled into, SPLITSERVE_CALL_KERNEL
// calls the one of the current instruction set; bindings do so through program.h. Only kernels that are
// declared by SPLITSERVE_DECLARE_TILE_KERNEL or SPLITSERVE_DECLARE_DOT_KERNEL have a form of their own for
// AMX, the others are those of avx512_bf16; only those of the latter, which multiply int8, have one for
// neon_dot, the others are the portable ones.
//
// A build for one machine defines SPLITSERVE_NATIVE, the namespace of the kernels that its processor runs,
// and SPLITSERVE_NATIVE_TILES if that is AMX's.
#define SPLITSERVE_DECLARE_IN(isa, name, Params) \
  namespace splitserve::isa {                    \
  void name(const Params& params);               \
  }
#define SPLITSERVE_DECLARE_FOR_TILES(name, Params) \
  SPLITSERVE_DECLARE_IN(avx512_bf16, name, Params) \
  namespace splitserve::amx {                      \
  using avx512_bf16::name;                         \
  }
#if defined(SPLITSERVE_NATIVE)
#if defined(SPLITSERVE_NATIVE_TILES)
#define SPLITSERVE_DECLARE_KERNEL SPLITSERVE_DECLARE_FOR_TILES
#else
#define SPLITSERVE_DECLARE_KERNEL(name, Params) SPLITSERVE_DECLARE_IN(SPLITSERVE_NATIVE, name, Params)
#endif
#define SPLITSERVE_DECLARE_TILE_KERNEL(name, Params) SPLITSERVE_DECLARE_IN(SPLITSERVE_NATIVE, name, Params)
#define SPLITSERVE_CALL_KERNEL(name, params) splitserve::SPLITSERVE_NATIVE::name(params)
#elif SPLITSERVE_X86
#define SPLITSERVE_DECLARE_OLDER(name, Params)  \
  SPLITSERVE_DECLARE_IN(portable, name, Params) \
  SPLITSERVE_DECLARE_IN(avx2, name, Params)     \
  SPLITSERVE_DECLARE_IN(avx512, name, Params)
#define SPLITSERVE_DECLARE_KERNEL(name, Params) \
  SPLITSERVE_DECLARE_OLDER(name, Params)        \
  SPLITSERVE_DECLARE_FOR_TILES(name, Params)
#define SPLITSERVE_DECLARE_TILE_KERNEL(name, Params) \
  SPLITSERVE_DECLARE_OLDER(name, Params)             \
  SPLITSERVE_DECLARE_IN(avx512_bf16, name, Params)   \
  SPLITSERVE_DECLARE_IN(amx, name, Params)
#define SPLITSERVE_CALL_KERNEL(name, params)                                                           \
  (splitserve::current_isa() == splitserve::Isa::kAmx          ? splitserve::amx::name(params)         \
   : splitserve::current_isa() == splitserve::Isa::kAvx512Bf16 ? splitserve::avx512_bf16::name(params) \
   : splitserve::current_isa() == splitserve::Isa::kAvx512     ? splitserve::avx512::name(params)      \
   : splitserve::current_isa() == splitserve::Isa::kAvx2       ? splitserve::avx2::name(params)        \
                                                               : splitserve::portable::name(params))
#elif SPLITSERVE_ARM
#define SPLITSERVE_DECLARE_KERNEL(name, Params)  \
  SPLITSERVE_DECLARE_IN(portable, name, Params)  \
  SPLITSERVE_DECLARE_IN(neon_bf16, name, Params) \
  namespace splitserve::neon_dot {               \
  using portable::name;                          \
  }
#define SPLITSERVE_DECLARE_TILE_KERNEL SPLITSERVE_DECLARE_KERNEL
#define SPLITSERVE_DECLARE_DOT_KERNEL(name, Params) \
  SPLITSERVE_DECLARE_IN(portable, name, Params)     \
  SPLITSERVE_DECLARE_IN(neon_dot, name, Params)     \
  SPLITSERVE_DECLARE_IN(neon_bf16, name, Params)
#define SPLITSERVE_CALL_KERNEL(name, params)                                                      \
  (splitserve::current_isa() == splitserve::Isa::kNeonBf16  ? splitserve::neon_bf16::name(params) \
   : splitserve::current_isa() == splitserve::Isa::kNeonDot ? splitserve::neon_dot::name(params)  \
                                                            : splitserve::portable::name(params))
#else
#define SPLITSERVE_DECLARE_KERNEL(name, Params) SPLITSERVE_DECLARE_IN(portable, name, Params)
#define SPLITSERVE_DECLARE_TILE_KERNEL SPLITSERVE_DECLARE_KERNEL
#define SPLITSERVE_CALL_KERNEL(name, params) splitserve::portable::name(params)
#endif
#if !defined(SPLITSERVE_DECLARE_DOT_KERNEL)
#define SPLITSERVE_DECLARE_DOT_KERNEL SPLITSERVE_DECLARE_TILE_KERNEL
#endif
