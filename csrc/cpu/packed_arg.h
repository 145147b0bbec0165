// The check of a packed weight as an argument.
#pragma once

#include "common/check.h"
#include "cpu/group_scales.h"

namespace splitserve {

inline constexpr DLDataType kUint8Type{kDLUInt, 8, 1};

inline WeightFormat format_of(const TensorView& packed) {
  const DLDataType type = packed.dtype();
  if (same_type(type, kFloat32Type)) return WeightFormat::kFloat32;
  if (same_type(type, kBFloat16Type)) return WeightFormat::kBFloat16;
  if (same_type(type, kInt8Type) && packed.ndim() != 3) {
    const bool is_dot = packed.ndim() == 4 && packed.size(3) == kDotPair;
    return is_dot ? WeightFormat::kInt8Dot : WeightFormat::kInt8;
  }
  if (packed.ndim() == 4) return WeightFormat::kFp8Groups;
  const int64_t unit = packed.ndim() == 3 ? packed.size(2) : 0;
  if (unit == kGroupCodeBytes) return WeightFormat::kInt4Groups;
  if (unit == 2 * kInt6HalfBytes) return WeightFormat::kInt6Groups;
  return unit == kMxfp4ScaleBytes + kGroupCodeBytes ? WeightFormat::kMxfp4 : WeightFormat::kInt4;
}

// Codes of 4 bits with scales beside them that are int8 instead of uint8 ask for activations as bytes.
inline bool takes_bytes(const TensorView& packed) {
  return packed.ndim() == 3 && same_type(packed.dtype(), kInt8Type);
}

// A weight of [cols, depth] as packed.h describes it: [panels, steps, 32, pair], or of uint8 or int8
// [panels, groups, bytes] for codes of 4 and 6 bits; FP8 is uint8 in the place of int8; dense. Or `count` of
// them, one behind the other.
inline WeightFormat packed_arg(const TensorView& packed, int64_t cols, int64_t depth, int64_t count = 1) {
  const Arg arg = cpu_arg(packed, "packed").type({kFloat32Type, kBFloat16Type, kInt8Type, kUint8Type});
  const WeightFormat format = format_of(packed);
  if (has_code_units(format)) {
    arg.rank(3).size(1, ceil_div(depth, kGroupDepth)).size(2, panel_bytes(format, kGroupDepth));
    SPLITSERVE_CHECK_VALUE(!takes_bytes(packed) || format == WeightFormat::kInt4Groups,
                           "packed: int8 is for codes of 4 bits with scales beside them");
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

// A weight with its scales.
struct ScaledWeight {
  WeightFormat format;
  const float* scales;  // of outputs, or nullptr
  GroupScales groups;
};

// The scales of groups beside weights: float32 [panels, groups, 1 or 2, 32], whose number tells how many
// inputs a group has; or, for codes of 4 and 6 bits, uint8 [panels, units, 1 or 2, bytes], whose bytes tell
// it.
inline GroupScales group_scales_arg(const TensorView& scales, WeightFormat format, int64_t panels,
                                    int64_t depth) {
  const Arg arg = cpu_arg(scales, "scales").rank(4).size(0, panels);
  SPLITSERVE_CHECK_VALUE(scales.IsContiguous(), "scales: must be contiguous");
  GroupScales groups{};
  groups.scales = static_cast<const char*>(scales.data_ptr());
  groups.are_bytes = same_type(scales.dtype(), kUint8Type) && has_code_units(format);
  groups.has_offsets = scales.size(2) == 2;
  arg.size(2, groups.kinds());
  groups.depth = kSmallestGroup;
  if (groups.are_bytes) {
    while (groups.depth < kLargestGroup && groups.unit_bytes() > scales.size(3)) groups.depth *= 2;
    groups.count = ceil_div(depth, groups.depth);
    arg.size(1, ceil_div(depth, kUnitDepth)).size(3, groups.unit_bytes());
  } else {
    groups.count = scales.size(1);
    while (groups.depth < kLargestGroup && ceil_div(depth, groups.depth) > groups.count) groups.depth *= 2;
    arg.type({kFloat32Type}).size(1, ceil_div(depth, groups.depth)).size(3, kPanelCols);
  }
  return groups;
}

// One float32 scale per output for int8, or those of groups; FP8, int4 and int6 in groups have the latter,
// others none.
inline ScaledWeight scaled_arg(const TensorView& packed, const Optional<TensorView>& scales, int64_t cols,
                               int64_t depth, int64_t count = 1) {
  ScaledWeight weight{packed_arg(packed, cols, depth, count), nullptr, {}};
  const bool is_int8 = weight.format == WeightFormat::kInt8, is_dot = weight.format == WeightFormat::kInt8Dot;
  const bool has_scales = is_int8 || is_dot || has_group_scales(weight.format);
  SPLITSERVE_CHECK_VALUE(scales.has_value() == has_scales,
                         "scales: weights of 8 bits and those in groups have them, others do not");
  if (!has_scales) return weight;
  const TensorView view = *scales;
  if (is_dot || (is_int8 && view.ndim() == 1)) {
    weight.scales = cpu_arg(view, "scales").vector(kFloat32Type, count * cols).data<const float>();
    return weight;
  }
  if (is_int8) weight.format = WeightFormat::kInt8Groups;
  weight.groups = group_scales_arg(view, weight.format, packed.size(0), depth);
  return weight;
}

}  // namespace splitserve
