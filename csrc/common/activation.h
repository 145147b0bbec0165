// Arguments of the element-wise activation kernels.
#pragma once

#include "common/dtype.h"

namespace splitserve {

enum class Activation { kSiluAndMul, kGelu, kGeluTanh };

struct ActivationParams {
  void* out;      // [tokens, size]
  const void* x;  // [tokens, size], or [tokens, 2 * size] for kSiluAndMul: gate, then up
  int64_t out_stride;
  int64_t x_stride;
  int64_t tokens;
  int64_t size;
  Activation kind;
  DType dtype;
};

}  // namespace splitserve
