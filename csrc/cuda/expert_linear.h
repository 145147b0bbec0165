// Arguments of the kernel that multiplies rows with the matrices of their experts.
#pragma once

#include "common/dtype.h"

namespace splitserve {

struct ExpertLinearParams {
  void* out;              // [rows, cols]
  const void* x;          // [rows, depth]
  const void* weight;     // [experts, cols, depth], dense
  const void* bias;       // [experts, cols] or nullptr
  const int32_t* starts;  // [experts + 1]: expert e has the rows starts[e] to starts[e + 1]
  int64_t out_stride, x_stride;
  int64_t rows, experts, cols, depth;
  DType dtype;      // of x, weight and bias
  DType out_dtype;  // the same or float32
};

}  // namespace splitserve
