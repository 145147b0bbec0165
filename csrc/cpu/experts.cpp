// Checks and binding of route, spread_rows, expert_linear, clamped_swiglu and combine_experts.
#include "cpu/experts.h"

#include "cpu/device.h"
#include "cpu/linear_args.h"

namespace splitserve {
namespace {

// What route() writes for tokens of `chosen` slots each.
const int32_t* places_arg(const TensorView& places, int64_t slots) {
  return cpu_arg(places, "places").vector(kInt32Type, slots).data<const int32_t>();
}

void check_places(const int32_t* places, int64_t slots) {
  for (int64_t slot = 0; slot < slots; ++slot) {
    SPLITSERVE_CHECK_VALUE(places[slot] >= 0 && places[slot] < slots,
                           "places: " << places[slot] << " is not one of " << slots);
  }
}

void route(TensorView weights, TensorView ids, TensorView places, TensorView starts, TensorView logits,
           bool adds_up) {
  RouteParams params{};
  cpu_arg(logits, "logits").rank(2).type({kFloat32Type}).rows_contiguous();
  params.tokens = logits.size(0);
  params.experts = logits.size(1);
  cpu_arg(ids, "ids").rank(2).type({kInt32Type}).size(0, params.tokens);
  params.chosen = ids.size(1);
  SPLITSERVE_CHECK_VALUE(params.experts <= kMaxExperts,
                         "logits: expected at most " << kMaxExperts << " experts, got " << params.experts);
  SPLITSERVE_CHECK_VALUE(params.chosen >= 1 && params.chosen <= params.experts,
                         "ids: expected 1 to " << params.experts << " per token, got " << params.chosen);
  cpu_arg(weights, "weights").rank(2).type({kFloat32Type}).size(0, params.tokens).size(1, params.chosen);
  SPLITSERVE_CHECK_VALUE(ids.IsContiguous() && weights.IsContiguous(), "ids, weights: must be contiguous");
  const int64_t slots = params.tokens * params.chosen;
  SPLITSERVE_CHECK_VALUE(slots <= INT32_MAX, "ids: too many");
  params.weights = static_cast<float*>(weights.data_ptr());
  params.ids = static_cast<int32_t*>(ids.data_ptr());
  params.places = cpu_arg(places, "places").vector(kInt32Type, slots).data<int32_t>();
  params.starts = cpu_arg(starts, "starts").vector(kInt32Type, params.experts + 1).data<int32_t>();
  params.logits = static_cast<const float*>(logits.data_ptr());
  params.logits_stride = logits.stride(0);
  params.adds_up = adds_up;
  SPLITSERVE_RUN_KERNEL(route, params);
}

void check_spread(const SpreadRowsParams& p) { check_places(p.places, p.tokens * p.chosen); }

void spread_rows(TensorView out, TensorView x, TensorView places) {
  SpreadRowsParams params{};
  const DType dtype = cpu_arg(x, "x").rank(2).rows_contiguous().activation();
  params.tokens = x.size(0);
  cpu_arg(out, "out").activation(dtype).rank(2).size(1, x.size(1)).rows_contiguous();
  const int64_t slots = out.size(0);
  SPLITSERVE_CHECK_VALUE(params.tokens > 0 ? slots % params.tokens == 0 : slots == 0,
                         "out: expected a multiple of " << params.tokens << " rows, got " << slots);
  params.chosen = params.tokens > 0 ? slots / params.tokens : 0;
  params.places = places_arg(places, slots);
  params.out = static_cast<char*>(out.data_ptr());
  params.x = static_cast<const char*>(x.data_ptr());
  params.out_stride = out.stride(0) * dtype_bytes(dtype);
  params.x_stride = x.stride(0) * dtype_bytes(dtype);
  params.row_bytes = x.size(1) * dtype_bytes(dtype);
  SPLITSERVE_RUN_CHECKED(spread_rows, check_spread, params, x.device());
}

void check_starts(const ExpertLinearParams& p) {
  int64_t last = 0;
  for (int64_t expert = 0; expert <= p.experts; ++expert) {
    SPLITSERVE_CHECK_VALUE(p.starts[expert] >= last, "starts: must not fall");
    last = p.starts[expert];
  }
  SPLITSERVE_CHECK_VALUE(p.starts[0] == 0 && last == p.linear.rows, "starts: expected 0 to "
                                                                        << p.linear.rows << ", got "
                                                                        << p.starts[0] << " to " << last);
}

void expert_linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> scales,
                   TensorView starts, int64_t cols, int64_t depth, Optional<TensorView> bias) {
  ExpertLinearParams params{};
  cpu_arg(starts, "starts").rank(1);
  params.experts = starts.size(0) - 1;
  SPLITSERVE_CHECK_VALUE(params.experts >= 1 && params.experts <= kMaxExperts,
                         "starts: expected 1 to " << kMaxExperts << " experts, got " << params.experts);
  params.starts = cpu_arg(starts, "starts").vector(kInt32Type, params.experts + 1).data<const int32_t>();
  params.linear = linear_params(out, x, weight, scales, bias, cols, depth, params.experts);
  SPLITSERVE_RUN_CHECKED(expert_linear, check_starts, params, x.device());
}

void clamped_swiglu(TensorView out, TensorView x, double alpha, double limit) {
  ClampedSwigluParams params{};
  params.dtype = cpu_arg(x, "x").rank(2).rows_contiguous().activation();
  params.rows = x.size(0);
  params.size = x.size(1) / 2;
  SPLITSERVE_CHECK_VALUE(x.size(1) % 2 == 0, "x: expected an even last dimension, got " << x.size(1));
  cpu_arg(out, "out").activation(params.dtype).rank(2).size(0, params.rows).size(1, params.size);
  cpu_arg(out, "out").rows_contiguous();
  SPLITSERVE_CHECK_VALUE(alpha > 0.0 && limit > 0.0, "alpha, limit: must be positive");
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  params.alpha = static_cast<float>(alpha);
  params.limit = static_cast<float>(limit);
  SPLITSERVE_RUN_KERNEL(clamped_swiglu, params);
}

void check_combine(const CombineExpertsParams& p) { check_places(p.places, p.tokens * p.chosen); }

void combine_experts(TensorView out, TensorView y, TensorView places, TensorView weights,
                     Optional<TensorView> shared, Optional<TensorView> gate) {
  CombineExpertsParams params{};
  params.out_dtype = cpu_arg(out, "out").rank(2).rows_contiguous().activation();
  params.tokens = out.size(0);
  params.size = out.size(1);
  cpu_arg(weights, "weights").rank(2).type({kFloat32Type}).size(0, params.tokens);
  SPLITSERVE_CHECK_VALUE(weights.IsContiguous(), "weights: must be contiguous");
  params.chosen = weights.size(1);
  const int64_t slots = params.tokens * params.chosen;
  cpu_arg(y, "y").rank(2).type({kFloat32Type}).size(0, slots).size(1, params.size).rows_contiguous();
  params.places = places_arg(places, slots);
  if (shared.has_value()) {
    const TensorView view = *shared;
    cpu_arg(view, "shared").rank(2).type({kFloat32Type}).size(0, params.tokens).size(1, params.size);
    cpu_arg(view, "shared").rows_contiguous();
    params.shared = static_cast<const float*>(view.data_ptr());
    params.shared_stride = view.stride(0);
  }
  if (gate.has_value()) {
    SPLITSERVE_CHECK_VALUE(shared.has_value(), "gate: there is nothing that it belongs to");
    const TensorView view = *gate;
    params.gate = cpu_arg(view, "gate").vector(kFloat32Type, params.tokens).data<const float>();
  }
  params.out = out.data_ptr();
  params.y = static_cast<const float*>(y.data_ptr());
  params.weights = static_cast<const float*>(weights.data_ptr());
  params.out_stride = out.stride(0);
  params.y_stride = y.stride(0);
  SPLITSERVE_RUN_CHECKED(combine_experts, check_combine, params, out.device());
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(route, splitserve::route);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(spread_rows, splitserve::spread_rows);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(expert_linear, splitserve::expert_linear);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(clamped_swiglu, splitserve::clamped_swiglu);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(combine_experts, splitserve::combine_experts);
