// Arguments of the kernel for single operations on tensors of any layout, as layers that are not ours ask for
// them.
#pragma once

#include "common/dtype.h"
#include "cpu/isa.h"

namespace splitserve {

inline constexpr int kElementDims = 5;

enum class Elementwise { kCopy, kNegate, kAdd, kSubtract, kMultiply };

// Strides in elements, 0 where a tensor is repeated; fewer dimensions have sizes of 1 before them.
struct ElementwiseParams {
  void* out;
  const void* x;
  const void* y;  // nullptr for kCopy and kNegate
  int64_t sizes[kElementDims];
  int64_t out_strides[kElementDims], x_strides[kElementDims], y_strides[kElementDims];
  Elementwise kind;
  DType out_dtype, dtype;  // of the result; of x and y
};

}  // namespace splitserve

SPLITSERVE_DECLARE_KERNEL(elementwise, ElementwiseParams)
