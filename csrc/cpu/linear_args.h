// Checks of the arguments that linear, expert_linear and gated_linear have in common.
#pragma once

#include "common/experts.h"
#include "cpu/linear.h"
#include "cpu/packed_arg.h"

namespace splitserve {

// All but outputs, of a weight [cols, depth] with a bias [cols], or of `count` of both, one behind the other.
inline void set_product(LinearParams* params, const TensorView& x, const TensorView& weight,
                        const Optional<TensorView>& scales, const Optional<TensorView>& bias, int64_t cols,
                        int64_t depth, int64_t count = 1) {
  const ScaledWeight scaled = scaled_arg(weight, scales, cols, depth, count);
  params->format = scaled.format;
  params->scales = scaled.scales;
  params->groups = scaled.groups;
  params->takes_bytes = takes_bytes(weight);
  // Sums of products of a signed with an unsigned byte must fit 32 bits.
  SPLITSERVE_CHECK_VALUE(params->format != WeightFormat::kInt8Dot || depth <= 65536,
                         "weight: int8 activations can have at most 65536 inputs, got " << depth);
  const DType dtype = activation_of(params->format);
  cpu_arg(x, "x").rank(2).size(1, depth).rows_contiguous().activation(dtype);
  params->rows = x.size(0);
  params->cols = cols;
  params->depth = depth;
  if (bias.has_value()) {
    const TensorView view = *bias;
    params->bias =
        cpu_arg(view, "bias").activation(dtype).rank(1).size(0, count * cols).rows_contiguous().data<void>();
  }
  params->x = x.data_ptr();
  params->weight = weight.data_ptr();
  params->x_stride = x.stride(0);
}

// The same with outputs of its own columns.
inline LinearParams linear_params(const TensorView& out, const TensorView& x, const TensorView& weight,
                                  const Optional<TensorView>& scales, const Optional<TensorView>& bias,
                                  int64_t cols, int64_t depth, int64_t count = 1) {
  LinearParams params{};
  set_product(&params, x, weight, scales, bias, cols, depth, count);
  params.out_dtype =
      cpu_arg(out, "out").rank(2).size(0, params.rows).size(1, cols).rows_contiguous().activation();
  if (params.out_dtype != DType::kFloat32 && params.out_dtype != activation_of(params.format)) {
    TVM_FFI_THROW(TypeError) << "out: expected the dtype of x or float32";
  }
  params.out = out.data_ptr();
  params.out_stride = out.stride(0);
  return params;
}

// Which rows each expert has.
inline void set_starts(ExpertLinearParams* params, const TensorView& starts) {
  cpu_arg(starts, "starts").rank(1);
  params->experts = starts.size(0) - 1;
  SPLITSERVE_CHECK_VALUE(params->experts >= 1 && params->experts <= kMaxExperts,
                         "starts: expected 1 to " << kMaxExperts << " experts, got " << params->experts);
  params->starts = cpu_arg(starts, "starts").vector(kInt32Type, params->experts + 1).data<const int32_t>();
}

// They rise, and are rows of x; none are needed where there is one matrix.
inline void check_starts(const ExpertLinearParams& p) {
  if (p.starts == nullptr) return;
  int64_t last = 0;
  for (int64_t expert = 0; expert <= p.experts; ++expert) {
    SPLITSERVE_CHECK_VALUE(p.starts[expert] >= last, "starts: must not fall");
    last = p.starts[expert];
  }
  SPLITSERVE_CHECK_VALUE(p.starts[0] >= 0 && last <= p.linear.rows, "starts: expected 0 to "
                                                                        << p.linear.rows << ", got "
                                                                        << p.starts[0] << " to " << last);
}

}  // namespace splitserve
