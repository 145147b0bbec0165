// Checks and binding of route, spread_rows, clamped_swiglu and combine_experts.
#include "common/experts.h"

#include "bindings/route_args.h"

namespace splitserve {
namespace {

// What route() writes for tokens of `chosen` slots each.
const int32_t* places_arg(const DeviceArgs& args, const TensorView& places, int64_t slots) {
  return args(places, "places").vector(kInt32Type, slots).data<const int32_t>();
}

// Where the rows of some experts in a row begin and end, at least one expert's.
const int32_t* starts_arg(const DeviceArgs& args, const TensorView& starts, int64_t* experts) {
  args(starts, "starts").rank(1);
  *experts = starts.size(0) - 1;
  SPLITSERVE_CHECK_VALUE(*experts > 0, "starts: expected those of an expert, got " << starts.size(0));
  return args(starts, "starts").vector(kInt32Type, *experts + 1).data<const int32_t>();
}

[[maybe_unused]] void check_places(const int32_t* places, int64_t slots) {
  for (int64_t slot = 0; slot < slots; ++slot) {
    SPLITSERVE_CHECK_VALUE(places[slot] >= 0 && places[slot] < slots,
                           "places: " << places[slot] << " is not one of " << slots);
  }
}

void route(TensorView weights, TensorView ids, TensorView places, TensorView starts, TensorView logits,
           bool adds_up) {
  const DeviceArgs args(logits, "logits");
  const RouteParams params = route_params(args, weights, ids, places, starts, logits, adds_up);
  SPLITSERVE_RUN(route, params, args.device());
}

[[maybe_unused]] void check_spread(const SpreadRowsParams& p) { check_places(p.places, p.tokens * p.chosen); }

void spread_rows(TensorView out, TensorView x, TensorView places, TensorView starts) {
  const DeviceArgs args(x, "x");
  SpreadRowsParams params{};
  const DType dtype = args(x, "x").rank(2).rows_contiguous().activation();
  params.tokens = x.size(0);
  args(out, "out").activation(dtype).rank(2).size(1, x.size(1)).rows_contiguous();
  const int64_t slots = out.size(0);
  SPLITSERVE_CHECK_VALUE(params.tokens > 0 ? slots % params.tokens == 0 : slots == 0,
                         "out: expected a multiple of " << params.tokens << " rows, got " << slots);
  params.chosen = params.tokens > 0 ? slots / params.tokens : 0;
  params.places = places_arg(args, places, slots);
  params.starts = starts_arg(args, starts, &params.experts);
  params.out = static_cast<char*>(out.data_ptr());
  params.x = static_cast<const char*>(x.data_ptr());
  params.out_stride = out.stride(0) * dtype_bytes(dtype);
  params.x_stride = x.stride(0) * dtype_bytes(dtype);
  params.row_bytes = x.size(1) * dtype_bytes(dtype);
  SPLITSERVE_RUN_CHECKED(spread_rows, check_spread, params, args.device());
}

void clamped_swiglu(TensorView out, TensorView x, double alpha, double limit) {
  const DeviceArgs args(x, "x");
  ClampedSwigluParams params{};
  params.dtype = args(x, "x").rank(2).rows_contiguous().activation();
  params.rows = x.size(0);
  params.size = x.size(1) / 2;
  SPLITSERVE_CHECK_VALUE(x.size(1) % 2 == 0, "x: expected an even last dimension, got " << x.size(1));
  args(out, "out").activation(params.dtype).rank(2).size(0, params.rows).size(1, params.size);
  args(out, "out").rows_contiguous();
  SPLITSERVE_CHECK_VALUE(alpha > 0.0 && limit > 0.0, "alpha, limit: must be positive");
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  params.alpha = static_cast<float>(alpha);
  params.limit = static_cast<float>(limit);
  SPLITSERVE_RUN(clamped_swiglu, params, args.device());
}

[[maybe_unused]] void check_combine(const CombineExpertsParams& p) {
  check_places(p.places, p.tokens * p.chosen);
}

void combine_experts(TensorView out, TensorView y, TensorView places, TensorView weights, TensorView starts,
                     Optional<TensorView> shared, Optional<TensorView> gate) {
  const DeviceArgs args(out, "out");
  CombineExpertsParams params{};
  params.out_dtype = args(out, "out").rank(2).rows_contiguous().activation();
  params.tokens = out.size(0);
  params.size = out.size(1);
  args(weights, "weights").rank(2).type({kFloat32Type}).size(0, params.tokens);
  SPLITSERVE_CHECK_VALUE(weights.IsContiguous(), "weights: must be contiguous");
  params.chosen = weights.size(1);
  const int64_t slots = params.tokens * params.chosen;
  args(y, "y").rank(2).type({kFloat32Type}).size(0, slots).size(1, params.size).rows_contiguous();
  params.places = places_arg(args, places, slots);
  params.starts = starts_arg(args, starts, &params.experts);
  if (shared.has_value()) {
    const TensorView view = *shared;
    args(view, "shared").rank(2).type({kFloat32Type}).size(0, params.tokens).size(1, params.size);
    args(view, "shared").rows_contiguous();
    params.shared = static_cast<const float*>(view.data_ptr());
    params.shared_stride = view.stride(0);
  }
  if (gate.has_value()) {
    SPLITSERVE_CHECK_VALUE(shared.has_value(), "gate: there is nothing that it belongs to");
    const TensorView view = *gate;
    params.gate = args(view, "gate").vector(kFloat32Type, params.tokens).data<const float>();
  }
  params.out = out.data_ptr();
  params.y = static_cast<const float*>(y.data_ptr());
  params.weights = static_cast<const float*>(weights.data_ptr());
  params.out_stride = out.stride(0);
  params.y_stride = y.stride(0);
  SPLITSERVE_RUN_CHECKED(combine_experts, check_combine, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(route, splitserve::route);
SPLITSERVE_EXPORT(spread_rows, splitserve::spread_rows);
SPLITSERVE_EXPORT(clamped_swiglu, splitserve::clamped_swiglu);
SPLITSERVE_EXPORT(combine_experts, splitserve::combine_experts);
