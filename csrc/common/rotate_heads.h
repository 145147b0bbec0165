// Arguments of the kernel that turns queries or keys by their positions, in place, where there is no cache to
// write keys into.
#pragma once

#include "common/kv_write.h"

namespace splitserve {

struct RotateHeadsParams {
  HeadRows x;            // [tokens, heads, head_dim]
  IndexArray positions;  // [tokens]
  const float* cos_sin;  // [max_pos, rot_dim]: first half cosines, second half sines
  int64_t cos_sin_stride;
  int64_t max_pos, rot_dim;
  int64_t tokens, head_dim;
  DType dtype;
};

}  // namespace splitserve
