// Arguments of the rotary position embedding kernel.
#pragma once

#include "common/dtype.h"

namespace splitserve {

struct RotaryHeads {
  void* data;  // [tokens, heads, head_dim], in place
  int64_t token_stride;
  int64_t head_stride;
  int64_t heads;
};

struct RotaryParams {
  RotaryHeads q;
  RotaryHeads k;
  IndexArray positions;  // [tokens]
  const float* cos_sin;  // [max_pos, rot_dim]: first half cosines, second half sines
  int64_t cos_sin_stride;
  int64_t max_pos;
  int64_t tokens;
  int64_t rot_dim;
  DType dtype;
};

}  // namespace splitserve
