// Checks and binding of sum_parts.
#include "common/sum_parts.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

void sum_parts(TensorView out, TensorView parts, Optional<TensorView> bias, int64_t first) {
  const DeviceArgs args(out, "out");
  SumPartsParams params{};
  params.dtype = args(out, "out").rank(1).rows_contiguous().activation();
  params.count = out.size(0);
  params.part_dtype = args(parts, "parts").rank(2).size(1, params.count).rows_contiguous().activation();
  if (params.part_dtype != DType::kFloat32) args(parts, "parts").activation(params.dtype);
  params.num_parts = parts.size(0);
  SPLITSERVE_CHECK_VALUE(params.num_parts >= 1, "parts: expected at least one");
  SPLITSERVE_CHECK_VALUE(first >= 0, "first: expected 0 or more, got " << first);
  params.first = first;
  if (bias.has_value()) {
    const TensorView& vector = bias.value();
    params.bias = args(vector, "bias").activation(params.dtype).rank(1).rows_contiguous().data<void>();
    params.width = vector.size(0);
    SPLITSERVE_CHECK_VALUE(params.width >= 1, "bias: expected at least one element");
  } else {
    // One row.
    params.width = first + params.count;
  }
  params.out = out.data_ptr();
  params.parts = parts.data_ptr();
  params.stride = parts.stride(0) * dtype_bytes(params.part_dtype);
  SPLITSERVE_RUN(sum_parts, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(sum_parts, splitserve::sum_parts);
