// Where the scales of weights in groups are that do not lie between their codes.
//
// floats:  float32 [panels][groups][1 or 2][32 outputs]: scales, then offsets.
//
// bytes, as GGUF's K types have them:  [panels][units][1 or 2] = 32 float32, then int8 [groups of a unit][32]
// that are multiplied with them. A unit is 256 inputs.
#pragma once

#include "cpu/packed.h"

namespace splitserve {

inline constexpr int64_t kUnitDepth = 256;

// Scales of a weight in groups, and what its offsets are multiplied with.
struct GroupScales {
  static constexpr int64_t kFloatsBytes = kPanelCols * 4;

  const char* scales;
  const float* row_sums;  // [rows, groups] of a row's inputs; nullptr if nothing is added to the products
  int64_t depth;          // inputs of a group
  int64_t count;          // of groups
  bool has_offsets, are_bytes;

  [[gnu::always_inline]] int64_t kinds() const { return has_offsets ? 2 : 1; }
  // The group of an input; `depth` is a power of two.
  [[gnu::always_inline]] int64_t of_input(int64_t input) const { return input >> depth_bits(); }
  // Of a unit.
  [[gnu::always_inline]] int64_t unit_groups() const { return kUnitDepth >> depth_bits(); }
  [[gnu::always_inline]] const char* of_panel(int64_t panel) const { return scales + panel * panel_bytes(); }

  // Of a panel's group, where they are floats.
  [[gnu::always_inline]] const float* floats(const char* panel, int64_t group, int64_t kind) const {
    return reinterpret_cast<const float*>(panel + (group * kinds() + kind) * kFloatsBytes);
  }
  // Where scales are bytes: the unit that a group is in, which begins with its floats, and the group's bytes.
  [[gnu::always_inline]] const char* unit(const char* panel, int64_t group, int64_t kind) const {
    return panel + ((group * depth / kUnitDepth) * kinds() + kind) * unit_bytes();
  }
  [[gnu::always_inline]] const int8_t* bytes(const char* unit, int64_t group) const {
    return reinterpret_cast<const int8_t*>(unit + kFloatsBytes) + (group & (unit_groups() - 1)) * kPanelCols;
  }
  [[gnu::always_inline]] int64_t unit_bytes() const { return kFloatsBytes + unit_groups() * kPanelCols; }

 private:
  [[gnu::always_inline]] int depth_bits() const { return __builtin_ctzll(static_cast<uint64_t>(depth)); }
  int64_t panel_bytes() const {
    return (are_bytes ? ceil_div(count, unit_groups()) * unit_bytes() : count * kFloatsBytes) * kinds();
  }
};

}  // namespace splitserve
