// Checks of the arguments that linear and expert_linear have in common.
#pragma once

#include "cpu/linear.h"
#include "cpu/packed_arg.h"

namespace splitserve {

// Of a weight [cols, depth] with a bias [cols], or of `count` of both, one behind the other.
inline LinearParams linear_params(const TensorView& out, const TensorView& x, const TensorView& weight,
                                  const Optional<TensorView>& scales, const Optional<TensorView>& bias,
                                  int64_t cols, int64_t depth, int64_t count = 1) {
  LinearParams params{};
  const ScaledWeight scaled = scaled_arg(weight, scales, cols, depth, count);
  params.format = scaled.format;
  params.scales = scaled.scales;
  params.groups = scaled.groups;
  // Sums of products of a signed with an unsigned byte must fit 32 bits.
  SPLITSERVE_CHECK_VALUE(params.format != WeightFormat::kInt8Dot || depth <= 65536,
                         "weight: int8 activations can have at most 65536 inputs, got " << depth);
  const DType dtype = activation_of(params.format);
  cpu_arg(x, "x").rank(2).size(1, depth).rows_contiguous().activation(dtype);
  params.rows = x.size(0);
  params.cols = cols;
  params.depth = depth;
  params.out_dtype =
      cpu_arg(out, "out").rank(2).size(0, params.rows).size(1, cols).rows_contiguous().activation();
  if (params.out_dtype != DType::kFloat32 && params.out_dtype != dtype) {
    TVM_FFI_THROW(TypeError) << "out: expected the dtype of x or float32";
  }
  if (bias.has_value()) {
    const TensorView view = *bias;
    params.bias =
        cpu_arg(view, "bias").activation(dtype).rank(1).size(0, count * cols).rows_contiguous().data<void>();
  }
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.weight = weight.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  return params;
}

}  // namespace splitserve
