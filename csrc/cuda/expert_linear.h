// Arguments of the kernel that multiplies rows with the matrices of their experts.
#pragma once

#include "common/dtype.h"

namespace splitserve {

struct ExpertLinearParams {
  void* out;              // [rows, cols]
  const void* x;          // [rows, depth]
  const void* weight;     // [experts, cols, depth], or codes of MXFP4, see expert_weights.cuh
  const uint8_t* scales;  // [experts, cols, ceil(depth / 32)], of these codes; nullptr: there are none
  const void* bias;       // [experts, cols] or nullptr
  const int32_t* starts;  // [experts + 1]: expert e has the rows starts[e] to starts[e + 1]
  int64_t out_stride, x_stride;
  int64_t rows, experts, cols, depth;
  DType dtype;      // of x, bias and a weight without scales
  DType out_dtype;  // the same or float32
};

}  // namespace splitserve
