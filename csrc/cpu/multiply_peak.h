// Arguments of the kernel that does nothing but multiply.
#pragma once

#include "common/dtype.h"
#include "cpu/isa.h"

namespace splitserve {

// Elements of one operand, as many as the widest register has.
inline constexpr int64_t kPeakOperandSize = 32;
// Products of one element with another that a round of one task makes: four of AMX's tiles.
inline constexpr int64_t kPeakRoundProducts = 32768;

struct MultiplyPeakParams {
  const void* x;  // [kPeakOperandSize]
  int64_t tasks;
  int64_t rounds;
  DType dtype;
};

}  // namespace splitserve

SPLITSERVE_DECLARE_TILE_KERNEL(multiply_peak, MultiplyPeakParams)
