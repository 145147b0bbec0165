// Checks of the arguments that turn queries and keys by their positions.
#pragma once

#include "common/device_args.h"
#include "common/rotary.h"

namespace splitserve {

inline RotaryHeads rotary_heads(const DeviceArgs& args, const TensorView& tensor, const char* name,
                                const RotaryParams& params) {
  args(tensor, name).activation(params.dtype).rank(3).size(0, params.tokens).rows_contiguous();
  SPLITSERVE_CHECK_VALUE(tensor.size(2) >= params.rot_dim, name << ": head size " << tensor.size(2)
                                                                << " is smaller than rot_dim "
                                                                << params.rot_dim);
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.size(1)};
}

inline void check_positions(const RotaryParams& params) {
  for (int64_t token = 0; token < params.tokens; ++token) {
    const int64_t position = params.positions[token];
    SPLITSERVE_CHECK_VALUE(
        position >= 0 && position < params.max_pos,
        "positions: " << position << " is outside cos_sin's " << params.max_pos << " rows");
  }
}

inline RotaryParams rotary_params(const DeviceArgs& args, const TensorView& q, const TensorView& k,
                                  const TensorView& positions, const TensorView& cos_sin) {
  args(cos_sin, "cos_sin").rank(2).type({kFloat32Type}).rows_contiguous();
  RotaryParams params{};
  params.rot_dim = cos_sin.size(1);
  SPLITSERVE_CHECK_VALUE(params.rot_dim % 2 == 0, "cos_sin: rot_dim must be even, got " << params.rot_dim);
  params.dtype = args(q, "q").rank(3).activation();
  params.tokens = q.size(0);
  params.q = rotary_heads(args, q, "q", params);
  params.k = rotary_heads(args, k, "k", params);
  params.positions = args(positions, "positions").indices(params.tokens);
  params.cos_sin = static_cast<const float*>(cos_sin.data_ptr());
  params.cos_sin_stride = cos_sin.stride(0);
  params.max_pos = cos_sin.size(0);
  return params;
}

}  // namespace splitserve
