// The products of csrc/cuda/warpgroup.cuh on emulated threads: a warp's part depends on its own threads
// alone.
#pragma once

#include "cuda/row_lines.h"
#include "emulated_intrinsics.h"

namespace splitserve::cuda {

template <typename... Arrays>
void keep(Arrays&...) {}
template <typename... Arrays>
void warpgroup_begin(Arrays&...) {}
template <typename Sums>
void warpgroup_finish(Sums&) {}

// As the product of a warp with every 8 of the rows.
template <typename Element, int kRows, int kBytes, typename Sum>
void warpgroup_mma(Sum (&d)[kRows / 2], const uint32_t (&a)[4], const char* rows, int index, bool adds) {
  require_aligned(rows, 8 * kBytes);
  const int lane = emulated::self().lane;
  for (int first = 0; first < kRows; first += 8) {
    Sum sums[4] = {};
    if (adds) std::copy_n(d + first / 2, 4, sums);
    uint32_t b[2];
    for (int i = 0; i < 2; ++i) {
      const int place = line_place<kBytes>(first + lane / 4, 2 * index + i);
      std::memcpy(&b[i], rows + place + lane % 4 * 4, 4);
    }
    if constexpr (std::same_as<Element, int8_t>) {
      mma_int8(sums, a, b[0], b[1]);
    } else {
      mma<Element>(sums, a, b[0], b[1]);
    }
    std::copy_n(sums, 4, d + first / 2);
  }
}

}  // namespace splitserve::cuda
