// Arguments of the element-wise kernels: activations, sums, multiplication by a number, soft caps.
#pragma once

#include "common/dtype.h"

namespace splitserve {

enum class Activation { kSiluAndMul, kGeluAndMul, kGeluTanhAndMul, kGelu, kGeluTanh, kAdd, kScale, kSoftCap };

struct ActivationParams {
  void* out;      // [tokens, size]
  const void* x;  // [tokens, size]
  const void* y;  // [tokens, size], what a gate x is multiplied with, or what is added; nullptr: unused
  int64_t out_stride;
  int64_t x_stride;
  int64_t y_stride;
  int64_t tokens;
  int64_t size;
  float factor;  // kScale: what is multiplied with; kSoftCap: the cap; above 0
  Activation kind;
  DType dtype;
};

}  // namespace splitserve
