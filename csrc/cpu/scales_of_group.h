// Scales of groups beside a weight as floats.
#pragma once

#include "cpu/group_scales.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {

// Those of the 32 outputs of a panel, or their offsets (`kind` 1): where they are, or made of bytes in
// `buffer`, which is exact as long as a unit's float has no more than 16 digits.
SPLITSERVE_INLINE const float* scales_of_group(const GroupScales& groups, const char* panel, int64_t group,
                                               int64_t kind, float (&buffer)[kPanelCols]) {
  if (!groups.are_bytes) return groups.floats(panel, group, kind);
  const char* const unit = groups.unit(panel, group, kind);
  const int8_t* const bytes = groups.bytes(unit, group);
#pragma GCC unroll 8
  for (int64_t col = 0; col < kPanelCols; col += kLanes) {
    const Vec numbers = __builtin_convertvector(load_wide(bytes + col), Vec);
    store(buffer + col, load(reinterpret_cast<const float*>(unit) + col) * numbers);
  }
  return buffer;
}

}  // namespace splitserve::SPLITSERVE_ISA
