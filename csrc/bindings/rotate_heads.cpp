// Checks and binding of rotate_heads.
#include "common/rotate_heads.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

[[maybe_unused]] void check_positions(const RotateHeadsParams& p) {
  for (int64_t token = 0; token < p.tokens; ++token) {
    const int64_t position = p.positions[token];
    SPLITSERVE_CHECK_VALUE(position >= 0 && position < p.max_pos,
                           "positions: " << position << " is outside cos_sin's " << p.max_pos << " rows");
  }
}

void rotate_heads(TensorView x, TensorView positions, TensorView cos_sin) {
  const DeviceArgs args(x, "x");
  RotateHeadsParams params{};
  params.dtype = args(x, "x").rank(3).rows_contiguous().activation();
  params.x = {x.data_ptr(), x.stride(0), x.stride(1), x.size(1)};
  params.tokens = x.size(0);
  params.head_dim = x.size(2);
  params.positions = args(positions, "positions").indices(params.tokens);
  args(cos_sin, "cos_sin").rank(2).type({kFloat32Type}).rows_contiguous();
  params.rot_dim = cos_sin.size(1);
  SPLITSERVE_CHECK_VALUE(params.rot_dim % 2 == 0, "cos_sin: rot_dim must be even, got " << params.rot_dim);
  SPLITSERVE_CHECK_VALUE(params.head_dim >= params.rot_dim,
                         "x: head size " << params.head_dim << " is smaller than rot_dim " << params.rot_dim);
  params.cos_sin = static_cast<const float*>(cos_sin.data_ptr());
  params.cos_sin_stride = cos_sin.stride(0);
  params.max_pos = cos_sin.size(0);
  SPLITSERVE_RUN_CHECKED(rotate_heads, check_positions, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(rotate_heads, splitserve::rotate_heads);
