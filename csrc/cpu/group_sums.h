// Sums of the inputs of groups, which offsets of weights are multiplied with.
#pragma once

#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// sums [rows, groups], each in an order that depends on its group alone.
inline void sum_groups(const LinearParams& p, float* sums) {
  const int64_t depth = p.groups.depth, count = p.groups.count;
  parallel_for(p.rows, p.rows * p.depth, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const BFloat16* x = static_cast<const BFloat16*>(p.x) + row * p.x_stride;
      for (int64_t group = 0; group < count; ++group) {
        const int64_t last = (group + 1) * depth < p.depth ? (group + 1) * depth : p.depth;
        Vec sum{};
        for (int64_t k = group * depth; k < last; k += kLanes) sum += load_up_to(x + k, last - k);
        sums[row * count + group] = sum_lanes(sum);
      }
    }
  });
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
