// Run-time choice of the instruction set and of the number of threads.
#pragma once

#if defined(__x86_64__)
#define SPLITSERVE_X86 1
#else
#define SPLITSERVE_X86 0
#endif

namespace splitserve {

// Ordered: a CPU that has one of them has all before it.
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

Isa current_isa();
int num_threads();

}  // namespace splitserve

// SPLITSERVE_DECLARE_* name a kernel in every namespace it is compiled into, SPLITSERVE_CALL_* call the one
// of the current instruction set; bindings do so through program.h. BF16 kernels read or write bfloat16, F32
// kernels do not and have no variant for it.
#if SPLITSERVE_X86
#define SPLITSERVE_DECLARE_F32(name, Params) \
  namespace splitserve::portable {           \
  void name(const Params& params);           \
  }                                          \
  namespace splitserve::avx2 {               \
  void name(const Params& params);           \
  }                                          \
  namespace splitserve::avx512 {             \
  void name(const Params& params);           \
  }
#define SPLITSERVE_DECLARE_BF16(name, Params) \
  SPLITSERVE_DECLARE_F32(name, Params)        \
  namespace splitserve::avx512_bf16 {         \
  void name(const Params& params);            \
  }
#define SPLITSERVE_CALL_F32(name, params)                                                   \
  (splitserve::current_isa() >= splitserve::Isa::kAvx512 ? splitserve::avx512::name(params) \
   : splitserve::current_isa() == splitserve::Isa::kAvx2 ? splitserve::avx2::name(params)   \
                                                         : splitserve::portable::name(params))
#define SPLITSERVE_CALL_BF16(name, params)                                                           \
  (splitserve::current_isa() == splitserve::Isa::kAvx512Bf16 ? splitserve::avx512_bf16::name(params) \
                                                             : SPLITSERVE_CALL_F32(name, params))
#else
#define SPLITSERVE_DECLARE_F32(name, Params) \
  namespace splitserve::portable {           \
  void name(const Params& params);           \
  }
#define SPLITSERVE_DECLARE_BF16(name, Params) SPLITSERVE_DECLARE_F32(name, Params)
#define SPLITSERVE_CALL_F32(name, params) splitserve::portable::name(params)
#define SPLITSERVE_CALL_BF16(name, params) splitserve::portable::name(params)
#endif
