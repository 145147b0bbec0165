// The check of a packed weight as an argument.
#pragma once

#include "common/check.h"
#include "cpu/packed.h"

namespace splitserve {

inline constexpr DLDataType kInt8Type{kDLInt, 8, 1};
inline constexpr DLDataType kUint8Type{kDLUInt, 8, 1};

inline WeightFormat format_of(const TensorView& packed) {
  const DLDataType type = packed.dtype();
  if (same_type(type, kFloat32Type)) return WeightFormat::kFloat32;
  if (same_type(type, kBFloat16Type)) return WeightFormat::kBFloat16;
  if (same_type(type, kInt8Type)) return WeightFormat::kInt8;
  const bool has_small_scales = packed.ndim() == 3 && packed.size(2) == kMxfp4ScaleBytes + kGroupCodeBytes;
  return has_small_scales ? WeightFormat::kMxfp4 : WeightFormat::kInt4;
}

// A weight of [cols, depth] as packed.h describes it: [panels, steps, 32, pair], or of uint8
// [panels, groups, bytes] for int4 and MXFP4; dense. Or `count` of them, one behind the other.
inline WeightFormat packed_arg(const TensorView& packed, int64_t cols, int64_t depth, int64_t count = 1) {
  const Arg arg = cpu_arg(packed, "packed").type({kFloat32Type, kBFloat16Type, kInt8Type, kUint8Type});
  const WeightFormat format = format_of(packed);
  if (is_grouped(format)) {
    arg.rank(3).size(1, ceil_div(depth, kGroupDepth)).size(2, scale_bytes(format) + kGroupCodeBytes);
  } else {
    const PackedLayout layout(format, depth);
    arg.rank(4).size(1, layout.steps).size(2, kPanelCols).size(3, layout.pair);
  }
  arg.size(0, count * ceil_div(cols, kPanelCols));
  SPLITSERVE_CHECK_VALUE(packed.IsContiguous(), "packed: must be contiguous");
  return format;
}

// What activations are multiplied with weights of a format.
inline DType activation_of(WeightFormat format) {
  return format == WeightFormat::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

// One float32 scale per output for int8, none for the other formats.
inline const float* scales_arg(const Optional<TensorView>& scales, WeightFormat format, int64_t cols) {
  SPLITSERVE_CHECK_VALUE(scales.has_value() == (format == WeightFormat::kInt8),
                         "scales: int8 weights have them, others do not");
  if (!scales.has_value()) return nullptr;
  const TensorView view = *scales;
  return cpu_arg(view, "scales").vector(kFloat32Type, cols).data<const float>();
}

}  // namespace splitserve
