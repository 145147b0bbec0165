// Checks and bindings of what reads weights of codes.
#include "cuda/coded_linear.h"

#include "common/device_args.h"
#include "common/experts.h"

namespace splitserve {
namespace {

constexpr int64_t up_to(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple; }

// By the size of a step's codes; those of 1,024 bytes are int8, or uint8 for E4M3.
CodeFormat code_format(const TensorView& codes) {
  if (codes.size(2) == step_code_bytes(CodeFormat::kInt4)) return CodeFormat::kInt4;
  if (codes.size(2) == step_code_bytes(CodeFormat::kInt8Dot)) return CodeFormat::kInt8Dot;
  return same_type(codes.dtype(), kInt8Type) ? CodeFormat::kInt8 : CodeFormat::kFp8;
}

// Scales float32 [panels, groups, 1 or 2, 32].
void group_args(const DeviceArgs& args, const TensorView& scales, int64_t group, CodedWeightArgs& weight) {
  SPLITSERVE_CHECK_VALUE(group == 16 || group == 32 || group == 64 || group == 128,
                         "group: expected 16, 32, 64 or 128 inputs, got " << group);
  weight.group = group;
  weight.groups = up_to(weight.steps * step_inputs(weight.format), group);
  weight.has_offsets = scales.ndim() == 4 && scales.size(2) == 2;
  args(scales, "scales").rank(4).type({kFloat32Type}).size(0, weight.experts * weight.panels);
  args(scales, "scales").size(1, weight.groups).size(2, weight.has_offsets ? 2 : 1).size(3, kCodedCols);
  SPLITSERVE_CHECK_VALUE(scales.IsContiguous(), "scales: must be contiguous");
  SPLITSERVE_CHECK_VALUE(!weight.has_offsets || weight.format != CodeFormat::kFp8,
                         "scales: weights of FP8 have no offsets");
}

// Codes of `experts` matrices [cols, depth]: int8 or, of 4 bits and E4M3, uint8 [panels, steps, bytes].
CodedWeightArgs weight_args(const DeviceArgs& args, const TensorView& codes, const TensorView& scales,
                            int64_t experts, int64_t cols, int64_t depth, int64_t group) {
  CodedWeightArgs weight{};
  args(codes, "codes").rank(3).type({kInt8Type, kUInt8Type});
  weight.format = code_format(codes);
  weight.experts = experts, weight.cols = cols, weight.depth = depth;
  weight.panels = up_to(cols, kCodedCols);
  weight.steps = up_to(depth, step_inputs(weight.format));
  const DLDataType type =
      weight.format == CodeFormat::kInt4 || weight.format == CodeFormat::kFp8 ? kUInt8Type : kInt8Type;
  args(codes, "codes").type({type}).size(0, experts * weight.panels).size(1, weight.steps);
  args(codes, "codes").size(2, step_code_bytes(weight.format));
  SPLITSERVE_CHECK_VALUE(codes.IsContiguous(), "codes: must be contiguous");
  SPLITSERVE_CHECK_VALUE(depth >= 1 && depth <= 1 << 24, "depth: expected 1 to 2^24, got " << depth);
  weight.codes = static_cast<const char*>(codes.data_ptr());
  weight.scales = static_cast<const float*>(scales.data_ptr());
  const bool is_by_output =
      weight.format == CodeFormat::kInt8Dot || (weight.format == CodeFormat::kInt8 && group == 0);
  if (is_by_output) {
    args(scales, "scales").vector(kFloat32Type, experts * cols);
  } else {
    group_args(args, scales, group, weight);
  }
  return weight;
}

void run(const CodedLinearParams& params, DLDevice device) {
  if (params.weight.format == CodeFormat::kInt8Dot) {
    SPLITSERVE_RUN(coded_linear_dot, params, device);
  } else if (params.dtype == DType::kBFloat16) {
    SPLITSERVE_RUN(coded_linear_bfloat16, params, device);
  } else {
    SPLITSERVE_RUN(coded_linear_float16, params, device);
  }
}

// Rows of x: of 16 bits, or int8 with scales beside them.
void row_args(const DeviceArgs& args, const TensorView& x, const Optional<TensorView>& row_scales,
              CodedLinearParams& params) {
  const bool is_dot = params.weight.format == CodeFormat::kInt8Dot;
  args(x, "x").rank(2).size(1, params.weight.depth).rows_contiguous();
  SPLITSERVE_CHECK_VALUE(row_scales.has_value() == is_dot,
                         "row_scales: int8 activations have them, others do not");
  params.rows = x.size(0);
  params.x = x.data_ptr();
  params.x_stride = x.stride(0);
  const int64_t place = reinterpret_cast<intptr_t>(params.x) | params.x_stride * (is_dot ? 1 : 2);
  SPLITSERVE_CHECK_VALUE(place % 16 == 0, "x: rows must begin at multiples of 16 bytes");
  if (!is_dot) {
    params.dtype = args(x, "x").activation();
    if (params.dtype == DType::kFloat32) TVM_FFI_THROW(TypeError) << "x: codes multiply 16 bits, not float32";
    return;
  }
  const TensorView view = *row_scales;
  args(x, "x").type({kInt8Type});
  SPLITSERVE_CHECK_VALUE(params.weight.depth <= 65536, "x: int8 activations can have at most 65536 inputs");
  params.row_scales = args(view, "row_scales").vector(kFloat32Type, params.rows).data<const float>();
}

void coded_linear(TensorView out, TensorView x, Optional<TensorView> row_scales, TensorView codes,
                  TensorView scales, int64_t experts, int64_t cols, int64_t group,
                  Optional<TensorView> starts, Optional<TensorView> bias) {
  const DeviceArgs args(x, "x");
  args(x, "x").rank(2);
  SPLITSERVE_CHECK_VALUE(experts >= 1 && experts <= kMaxExperts,
                         "experts: expected 1 to " << kMaxExperts << ", got " << experts);
  CodedLinearParams params{};
  params.weight = weight_args(args, codes, scales, experts, cols, x.size(1), group);
  row_args(args, x, row_scales, params);
  params.out_dtype =
      args(out, "out").rank(2).size(0, params.rows).size(1, cols).rows_contiguous().activation();
  const bool is_dot = row_scales.has_value();
  if (is_dot) params.dtype = bias.has_value() ? args(*bias, "bias").activation() : params.out_dtype;
  if (params.out_dtype != DType::kFloat32 && params.out_dtype != params.dtype) {
    TVM_FFI_THROW(TypeError) << "out: expected the dtype of x or float32";
  }
  if (starts.has_value()) {
    const TensorView view = *starts;
    params.starts = args(view, "starts").vector(kInt32Type, experts + 1).data<const int32_t>();
  } else {
    SPLITSERVE_CHECK_VALUE(experts == 1, "starts: several experts need them");
  }
  if (bias.has_value()) {
    const TensorView view = *bias;
    params.bias = args(view, "bias").activation(params.dtype).rank(1).size(0, experts * cols).data<void>();
    args(view, "bias").rows_contiguous();
  }
  params.out = out.data_ptr();
  params.out_stride = out.stride(0);
  run(params, args.device());
}

void coded_embedding(TensorView out, TensorView token_ids, TensorView codes, TensorView scales, int64_t vocab,
                     int64_t group) {
  const DeviceArgs args(out, "out");
  CodedEmbeddingParams params{};
  params.dtype = args(out, "out").rank(2).rows_contiguous().activation();
  if (params.dtype == DType::kFloat32) TVM_FFI_THROW(TypeError) << "out: codes become 16 bits, not float32";
  params.weight = weight_args(args, codes, scales, 1, vocab, out.size(1), group);
  SPLITSERVE_CHECK_VALUE(params.weight.format != CodeFormat::kInt8Dot,
                         "codes: those for int8 activations cannot be looked up");
  params.tokens = out.size(0);
  params.token_ids = args(token_ids, "token_ids").indices(params.tokens);
  params.out = out.data_ptr();
  params.out_stride = out.stride(0);
  SPLITSERVE_RUN(coded_embedding, params, args.device());
}

void coded_dense(TensorView out, TensorView codes, TensorView scales, int64_t group) {
  const DeviceArgs args(out, "out");
  CodedDenseParams params{};
  params.dtype = args(out, "out").rank(2).rows_contiguous().activation();
  if (params.dtype == DType::kFloat32) TVM_FFI_THROW(TypeError) << "out: codes become 16 bits, not float32";
  params.weight = weight_args(args, codes, scales, 1, out.size(0), out.size(1), group);
  SPLITSERVE_CHECK_VALUE(params.weight.format != CodeFormat::kInt8Dot,
                         "codes: those for int8 activations cannot be written out");
  params.out = out.data_ptr();
  params.out_stride = out.stride(0);
  SPLITSERVE_RUN(coded_dense, params, args.device());
}

void code_rows(TensorView codes, TensorView scales, TensorView x) {
  const DeviceArgs args(x, "x");
  CodeRowsParams params{};
  params.dtype = args(x, "x").rank(2).rows_contiguous().activation();
  params.rows = x.size(0);
  params.depth = x.size(1);
  args(codes, "codes").rank(2).type({kInt8Type}).size(0, params.rows).size(1, params.depth).rows_contiguous();
  params.scales = args(scales, "scales").vector(kFloat32Type, params.rows).data<float>();
  params.codes = static_cast<int8_t*>(codes.data_ptr());
  params.x = x.data_ptr();
  params.codes_stride = codes.stride(0);
  params.x_stride = x.stride(0);
  SPLITSERVE_RUN(code_rows, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(coded_linear, splitserve::coded_linear);
SPLITSERVE_EXPORT(coded_dense, splitserve::coded_dense);
SPLITSERVE_EXPORT(coded_embedding, splitserve::coded_embedding);
SPLITSERVE_EXPORT(code_rows, splitserve::code_rows);
