// The tile under linear: some rows of x against one panel of packed weights.
//
// Each sum is one lane of one register and walks the input dimension from its start, a pair at a time. So its
// bits depend on the row and the column alone, never on the tile's shape or on its neighbours.
#pragma once

#include "cpu/weight_formats.h"

namespace splitserve::SPLITSERVE_ISA {

// Fetches kLines cache lines for unit `unit` of a walk over a panel, from `ahead` on.
template <int kLines>
SPLITSERVE_INLINE void fetch(const char* ahead, int64_t unit) {
#pragma GCC unroll 16
  for (int line = 0; line < kLines; ++line) __builtin_prefetch(ahead + (unit * kLines + line) * 64);
}

// sums[i][v] += x(i) * weight(v): one pair of every row with one pair of every column.
template <typename X, int kRows, typename Weight, typename Input>
SPLITSERVE_INLINE void add_products(Vec (&sums)[kRows][kPanelVecs], const Weight& weight, const Input& x) {
  using Step = DotStep<X>;
  typename Step::Operand inputs[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) inputs[i] = x(i);
#pragma GCC unroll 8
  for (int v = 0; v < kPanelVecs; ++v) {
    const typename Step::Operand w = weight(v);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sums[i][v] = Step::accumulate(sums[i][v], inputs[i], w);
  }
}

// Some rows of x.
template <typename X, int kRows>
struct Rows {
  const X* data[kRows];
  int64_t depth;

  // The pair that begins at k in every lane; zeros stand for what lies beyond the row.
  SPLITSERVE_INLINE auto pair(int64_t k) const {
    return [this, k](int i) __attribute__((always_inline)) { return DotStep<X>::broadcast(data[i] + k); };
  }
  SPLITSERVE_INLINE auto last(int64_t k) const {
    return [this, k](int i) __attribute__((always_inline)) { return broadcast_end(data[i] + k, depth - k); };
  }
};

// sums[i][v] += x[i] . (columns of register v). Meanwhile kLines cache lines per unit of the format are
// fetched from `ahead` on.
template <typename Format, int kRows, int kLines>
struct PanelTile {
  using X = typename Format::X;
  using Sums = Vec[kRows][kPanelVecs];

  SPLITSERVE_INLINE static void run(const Rows<X, kRows>& x, const char* panel, const char* ahead,
                                    Sums& sums) {
    constexpr int kPair = DotStep<X>::kPair;
    const auto weights = [panel](int64_t step) __attribute__((always_inline)) {
      return [p = panel + step * Format::kUnitBytes](int v)
                 __attribute__((always_inline)) { return Format::load(p, v); };
    };
    const int64_t steps = x.depth / kPair;
    for (int64_t step = 0; step < steps; ++step) {
      fetch<kLines>(ahead, step);
      add_products<X>(sums, weights(step), x.pair(step * kPair));
    }
    if (steps * kPair < x.depth) add_products<X>(sums, weights(steps), x.last(steps * kPair));
  }
};

// Groups: the sum of each is multiplied with its scale and added to those before.
template <int kRows, int kLines>
struct PanelTile<Int4Weights, kRows, kLines> {
  using X = BFloat16;
  using Sums = Vec[kRows][kPanelVecs];

  SPLITSERVE_INLINE static void run(const Rows<X, kRows>& x, const char* panel, const char* ahead,
                                    Sums& sums) {
    const int64_t groups = x.depth / kGroupDepth;
    for (int64_t group = 0; group < groups; ++group) {
      fetch<kLines>(ahead, group);
      const char* start = panel + group * kGroupBytes;
      Vec part[kRows][kPanelVecs] = {};
      for (int64_t block = 0; block < kGroupDepth / kBlockDepth; ++block) {
        add_block(x, start, group * kGroupDepth, block, part);
      }
      add_scaled(start, part, sums);
    }
    if (groups * kGroupDepth < x.depth)
      last_group(x, panel + groups * kGroupBytes, groups * kGroupDepth, sums);
  }

 private:
  SPLITSERVE_INLINE static void add_block(const Rows<X, kRows>& x, const char* group, int64_t first_k,
                                          int64_t block, Sums& part) {
    UintVec nibbles[kPanelVecs];
    for (int v = 0; v < kPanelVecs; ++v) {
      nibbles[v] = Int4Weights::load(group + kGroupScaleBytes + block * kBlockBytes, v);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kBlockDepth / 2; ++j) {
      const auto weight = [&](int v)
                              __attribute__((always_inline)) { return Int4Weights::pair(nibbles[v], j); };
      add_products<X>(part, weight, x.pair(first_k + block * kBlockDepth + 2 * j));
    }
  }

  // A group that ends with the row.
  static void last_group(const Rows<X, kRows>& x, const char* group, int64_t first_k, Sums& sums) {
    Vec part[kRows][kPanelVecs] = {};
    for (int64_t k = first_k; k < x.depth; k += 2) {
      const int64_t pair = (k - first_k) / 2;
      const char* block = group + kGroupScaleBytes + pair / 4 * kBlockBytes;
      const auto weight = [&](int v) __attribute__((always_inline)) {
        return Int4Weights::pair(Int4Weights::load(block, v), static_cast<int>(pair % 4));
      };
      add_products<X>(part, weight, x.last(k));
    }
    add_scaled(group, part, sums);
  }

  SPLITSERVE_INLINE static void add_scaled(const char* group, const Sums& part, Sums& sums) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec scale = load(reinterpret_cast<const BFloat16*>(group) + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sums[i][v] = fma(part[i][v], scale, sums[i][v]);
    }
  }
};

}  // namespace splitserve::SPLITSERVE_ISA
