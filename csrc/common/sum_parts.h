// Arguments of the kernel that adds up the ranks' partial sums.
#pragma once

#include "common/dtype.h"

namespace splitserve {

// out[i] = parts[0][i] + parts[1][i] + ... + bias[(first + i) % width], in this order, in float32, rounded
// once.
struct SumPartsParams {
  void* out;          // [count]
  const void* parts;  // of the first rank, [count]
  int64_t stride;     // bytes between the parts of one rank and the next
  int64_t num_parts;
  const void* bias;  // [width], nullptr for none
  int64_t first, count, width;
  DType part_dtype;  // float32, or the same as dtype
  DType dtype;       // of out and bias
};

}  // namespace splitserve
