// The check of a packed weight as an argument.
#pragma once

#include "common/check.h"
#include "cpu/packed.h"

namespace splitserve {

// [panels, steps, 32, pair], dense, for a weight of [cols, depth].
inline DType packed_arg(const TensorView& packed, int64_t cols, int64_t depth) {
  const Arg arg = cpu_arg(packed, "packed").rank(4);
  const DType dtype = arg.activation();
  const PackedLayout layout(dtype, depth);
  arg.size(0, ceil_div(cols, kPanelCols)).size(1, layout.steps).size(2, kPanelCols).size(3, layout.pair);
  SPLITSERVE_CHECK_VALUE(packed.IsContiguous(), "packed: must be contiguous");
  return dtype;
}

}  // namespace splitserve
