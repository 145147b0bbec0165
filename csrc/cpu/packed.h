// How the weights of a linear layer lie in memory: panels of 32 outputs, so that one register of weights
// meets one broadcast input and no sum has to be added across lanes. The layout is the same for every
// instruction set. What lies beyond the last output or input is zero.
//
// float32, bfloat16, int8:  packed[panel][step][col][pair] = weight[panel * 32 + col][step * kPair + pair]
//
//   A pair is as many neighbours along the input dimension as one step multiplies: 1 float32, else 2, as the
//   dot product instructions of x86 and Arm want them. int8 has one float32 scale per output beside it.
//
// int4:  packed[panel][group] = 32 scales in bfloat16, then 4 blocks of 8 inputs, 32 bits per output each.
//
//   A group is 32 neighbours along the input dimension. In a block inputs 0, 2, 4, 6 are the nibbles of the
//   lower half of the 32 bits and 1, 3, 5, 7 those of the upper half, lowest first, in two's complement; so
//   one shift of all lanes brings a pair to the bottoms of their halves.
//
// MXFP4:  the same with 32 scales of a byte, the exponent of a power of two as it is in a float32; and codes
// are sign, two bits of exponent and one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with either sign.
//
// int8 dot:  packed[panel][step][col][4] = weight[panel * 32 + col][step * 4 + i] + 128, for int8
// activations; there are zeros up to a multiple of 64 inputs. One float32 scale per output, as for int8.
//
// int8 groups, FP8 groups, int4 groups:  int8, E4M3 in its place, and packed[panel][unit] = 4 blocks as in
// int4 of codes from 0 to 15. Groups of 16, 32, 64 or 128 inputs have scales beside the weight, see
// group_scales.h, and may have offsets: a weight is code * scale + offset. Without them codes are worth as
// much as they say, those of 4 bits 8 less and those of 6 bits 32 less.
//
// int6 groups:  packed[panel][half] = 2 blocks as in int4 of the lower 4 bits of 16 inputs, then their upper
// 2 bits, 32 bits per output. A byte of these belongs to the same bytes of both blocks: bits 0 and 1 to the
// first one's lower nibble, 2 and 3 to its upper one, 4 to 7 to the second one's.
#pragma once

#include <cstdint>

#include "common/weight_format.h"

namespace splitserve {

inline constexpr int64_t kPanelCols = 32;
inline constexpr int64_t kGroupDepth = 32;
inline constexpr int64_t kInt4ScaleBytes = kPanelCols * 2;
inline constexpr int64_t kMxfp4ScaleBytes = kPanelCols;
inline constexpr int64_t kBlockDepth = 8;
inline constexpr int64_t kBlockBytes = kPanelCols * 4;
inline constexpr int64_t kGroupCodeBytes = kGroupDepth / kBlockDepth * kBlockBytes;
// Of codes of 6 bits.
inline constexpr int64_t kHalfDepth = kGroupDepth / 2;
inline constexpr int64_t kInt6UpperOffset = kHalfDepth / kBlockDepth * kBlockBytes,
                         kInt6HalfBytes = kInt6UpperOffset + kPanelCols * 4;

inline constexpr int64_t kSmallestGroup = 16, kLargestGroup = 128;
// Inputs whose weights of a panel stay in the L1 cache while rows multiply with them: whole groups.
inline constexpr int64_t kStretchInputs = 128;
static_assert(kStretchInputs % kLargestGroup == 0);
// Neighbours along the input dimension that one step of products of int8 adds up, and inputs of a row of a
// tile, to whose multiples weights and activations are padded.
inline constexpr int64_t kDotPair = 4, kDotDepth = 64;
// What codes of 4 and 6 bits without offsets are stored plus.
inline constexpr int kInt4Zero = 8, kInt6Zero = 32;

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether the weights are codes of 4 bits in groups, each with its scales before it.
inline constexpr bool is_grouped(WeightFormat format) {
  return format == WeightFormat::kInt4 || format == WeightFormat::kMxfp4;
}

// Whether the scales of groups lie beside the weights.
inline constexpr bool has_group_scales(WeightFormat format) {
  return format == WeightFormat::kInt8Groups || format == WeightFormat::kFp8Groups ||
         format == WeightFormat::kInt4Groups || format == WeightFormat::kInt6Groups;
}

// Whether codes are of 4 or 6 bits, 32 inputs in a unit.
inline constexpr bool has_code_units(WeightFormat format) {
  return is_grouped(format) || format == WeightFormat::kInt4Groups || format == WeightFormat::kInt6Groups;
}

// Bytes of the scales of a group of a panel, for formats that are grouped.
inline constexpr int64_t scale_bytes(WeightFormat format) {
  return format == WeightFormat::kInt4 ? kInt4ScaleBytes : kMxfp4ScaleBytes;
}

// Bytes of a panel.
inline constexpr int64_t panel_bytes(WeightFormat format, int64_t depth) {
  switch (format) {
    case WeightFormat::kFloat32:
      return depth * kPanelCols * 4;
    case WeightFormat::kBFloat16:
      return ceil_div(depth, 2) * kPanelCols * 4;
    case WeightFormat::kInt8:
    case WeightFormat::kInt8Groups:
    case WeightFormat::kFp8Groups:
      return ceil_div(depth, 2) * kPanelCols * 2;
    case WeightFormat::kInt4:
    case WeightFormat::kMxfp4:
      return ceil_div(depth, kGroupDepth) * (scale_bytes(format) + kGroupCodeBytes);
    case WeightFormat::kInt8Dot:
      return ceil_div(depth, kDotDepth) * kDotDepth * kPanelCols;
    case WeightFormat::kInt4Groups:
      return ceil_div(depth, kGroupDepth) * kGroupCodeBytes;
    case WeightFormat::kInt6Groups:
      return ceil_div(depth, kGroupDepth) * 2 * kInt6HalfBytes;
  }
  return 0;
}

// How far the upper bits of input `i` of a half are shifted in codes of 6 bits.
inline constexpr int64_t int6_shift(int64_t i) {
  const int64_t block = i / kBlockDepth, pair = i % kBlockDepth / 2;
  return i % 2 * 16 + pair / 2 * 8 + block * 4 + pair % 2 * 2;
}

// Where the elements of a packed weight that are no codes of 4 or 6 bits are, counted in elements.
struct PackedLayout {
  int64_t pair;
  int64_t steps;

  PackedLayout(WeightFormat format, int64_t depth)
      : pair(format == WeightFormat::kFloat32   ? 1
             : format == WeightFormat::kInt8Dot ? kDotPair
                                                : 2),
        steps(format == WeightFormat::kInt8Dot ? ceil_div(depth, kDotDepth) * (kDotDepth / kDotPair)
                                               : ceil_div(depth, pair)) {}

  int64_t offset(int64_t col, int64_t k) const {
    const int64_t step = col / kPanelCols * steps + k / pair;
    return (step * kPanelCols + col % kPanelCols) * pair + k % pair;
  }
};

}  // namespace splitserve
