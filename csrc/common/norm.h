// Arguments of the normalisation kernels, with and without the residual addition.
#pragma once

#include "common/dtype.h"

namespace splitserve {

// Rows are [outer, inner]; the last dimension has `hidden` contiguous elements. Strides are in elements.
struct NormRows {
  void* data;
  int64_t outer_stride;
  int64_t inner_stride;
};

struct NormParams {
  NormRows out;
  NormRows x;
  NormRows residual;   // data == nullptr: nothing is added
  const void* weight;  // [hidden]
  const void* bias;    // [hidden], layer norm only
  int64_t outer;
  int64_t inner;
  int64_t hidden;
  float eps;
  DType dtype;
};

}  // namespace splitserve
