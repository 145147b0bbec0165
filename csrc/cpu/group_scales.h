// Where the scales of weights in groups are that do not lie between their codes.
#pragma once

#include "cpu/packed.h"

namespace splitserve {

// Scales of a weight in groups, and what its offsets are multiplied with.
struct GroupScales {
  const float* scales;    // [panels, groups, 1 or 2, 32]: scales, then offsets
  const float* row_sums;  // [rows, groups] of a row's inputs; nullptr if nothing is added to the products
  int64_t depth;          // inputs of a group
  int64_t count;          // of groups
  bool has_offsets;

  [[gnu::always_inline]] int64_t stride() const { return (has_offsets ? 2 : 1) * kPanelCols; }
  // The group of an input; `depth` is a power of two.
  [[gnu::always_inline]] int64_t of_input(int64_t input) const {
    return input >> __builtin_ctzll(static_cast<uint64_t>(depth));
  }
  [[gnu::always_inline]] const float* of_panel(int64_t panel) const {
    return scales + panel * count * stride();
  }
};

}  // namespace splitserve
