// Arguments of the kernel that adds up what the ranks have sent.
#pragma once

#include "common/dtype.h"
#include "cpu/isa.h"

namespace splitserve {

// out[i] = parts[0][i] + parts[1][i] + ... + bias[(first + i) % width], in this order, in float32.
struct SumPartsParams {
  const char* parts;  // of the first rank
  int64_t stride;     // bytes between those of one rank and the next
  int64_t num_parts;
  void* out;
  const void* bias;  // [width], nullptr for none
  int64_t first, count, width;
  DType part_dtype;  // float32, or the same as dtype
  DType dtype;       // of out and bias
};

}  // namespace splitserve

SPLITSERVE_DECLARE_KERNEL(sum_parts, SumPartsParams)
