// How the weights of a linear layer lie in memory: panels of 32 outputs, so that one register of weights
// meets one broadcast input and no sum has to be added across lanes.
//
// packed[panel][step][col][pair] = weight[panel * 32 + col][step * kPair + pair]
//
// A pair is as many neighbours along the input dimension as fill 32 bits: 1 float, or 2 bfloat16 as the dot
// product instructions of x86 and Arm want them. The layout is the same for every instruction set. What lies
// beyond the last output or input is zero.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace splitserve {

inline constexpr int64_t kPanelCols = 32;

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Where the elements of one packed weight are; strides count elements.
struct PackedLayout {
  int64_t pair;
  int64_t steps;

  PackedLayout(DType dtype, int64_t depth)
      : pair(dtype == DType::kFloat32 ? 1 : 2), steps(ceil_div(depth, pair)) {}

  int64_t panel_stride() const { return steps * kPanelCols * pair; }
  int64_t offset(int64_t col, int64_t k) const {
    return col / kPanelCols * panel_stride() + (k / pair * kPanelCols + col % kPanelCols) * pair + k % pair;
  }
};

}  // namespace splitserve
