// Arguments of the normalisation kernels, with and without the residual addition.
#pragma once

#include "common/dtype.h"

namespace splitserve {

// [rows, hidden]; `stride` elements from one row to the next.
struct NormRows {
  void* data;
  int64_t stride;
};

struct NormParams {
  NormRows out;
  NormRows x;
  NormRows residual;   // data == nullptr: nothing is added
  const void* weight;  // [hidden]
  const void* bias;    // [hidden], layer norm only
  int64_t rows;
  int64_t hidden;
  float eps;
  float offset;  // added to the weights; RMS norm only
  DType dtype;
};

}  // namespace splitserve
