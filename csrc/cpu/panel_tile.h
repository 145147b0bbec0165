// The tile under linear: some rows of x against one panel of packed weights.
//
// Each sum is one lane of one register and walks the input dimension from its start, a pair at a time. So its
// bits depend on the row and the column alone, never on the tile's shape or on its neighbours.
#pragma once

#include "cpu/fetch.h"
#include "cpu/linear.h"
#include "cpu/scales_of_group.h"
#include "cpu/tile_step.h"
#include "cpu/weight_formats.h"

namespace splitserve::SPLITSERVE_ISA {

// sums[i][v] += x(i) * weight(v): one pair of every row with one pair of every column. 32 registers hold the
// weights of a step, and so many rows that their inputs pass one by one; 16 hold the inputs.
template <typename Step, int kRows, typename Weight, typename Input>
SPLITSERVE_INLINE void add_products(Vec (&sums)[kRows][kPanelVecs], const Weight& weight, const Input& x) {
  if constexpr (kLanes == 16) {
    typename Step::Operand weights[kPanelVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) weights[v] = Step::weights(weight(v));
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const typename Step::Operand input = x(i);
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVecs; ++v) sums[i][v] = Step::accumulate(sums[i][v], input, weights[v]);
    }
  } else {
    typename Step::Operand inputs[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) inputs[i] = x(i);
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      const typename Step::Operand operand = Step::weights(weight(v));
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sums[i][v] = Step::accumulate(sums[i][v], inputs[i], operand);
    }
  }
}

// Some rows of x.
template <typename Step, int kRows>
struct Rows {
  const typename Step::Input* data[kRows];
  int64_t depth;
  typename Step::Mode mode;

  SPLITSERVE_INLINE Rows(const InputRows<typename Step::Input>& x, int64_t num_inputs) : depth(num_inputs) {
    for (int i = 0; i < kRows; ++i) data[i] = x.from(i, 0).data;
  }

  // The pair that begins at k in every lane; zeros stand for what lies beyond the row.
  SPLITSERVE_INLINE auto pair(int64_t k) const {
    return [this, k](int i) __attribute__((always_inline)) { return Step::broadcast(data[i] + k); };
  }
  SPLITSERVE_INLINE auto last(int64_t k) const {
    return [this, k](int i) __attribute__((always_inline)) {
      if constexpr (Step::kIsPadded) {
        return Step::broadcast(data[i] + k);
      } else {
        return broadcast_end(data[i] + k, depth - k);
      }
    };
  }
};

// sums[i][v] += x[i] . (columns of register v). Meanwhile lines are fetched from `ahead` on.
template <typename Format, typename Step, int kRows, Fetched kFetched>
struct PanelTile {
  using Sums = Vec[kRows][kPanelVecs];

  SPLITSERVE_INLINE static void run(const Rows<Step, kRows>& x, const char* panel, const char* ahead,
                                    Sums& sums) {
    constexpr int kPair = Step::kPair;
    const int64_t units = x.depth / (kPair * kUnitSteps);
    x.mode.enter(sums);
    for (int64_t unit = 0; unit < units; ++unit) {
      fetch<kFetched>(ahead, unit);
#pragma GCC unroll 4
      for (int j = 0; j < kUnitSteps; ++j) {
        const int64_t step = unit * kUnitSteps + j;
        add_step(panel, step, x.pair(step * kPair), sums);
      }
    }
    for (int64_t step = units * kUnitSteps; step * kPair < x.depth; ++step) {
      add_step(panel, step, x.last(step * kPair), sums);
    }
    x.mode.leave(sums);
  }

 private:
  template <typename Input>
  SPLITSERVE_INLINE static void add_step(const char* panel, int64_t step, const Input& x, Sums& sums) {
    const char* start = panel + step * Format::kStepBytes;
    const auto weight = [start](int v) __attribute__((always_inline)) { return Format::load(start, v); };
    add_products<Step>(sums, weight, x);
  }
};

// Groups: the sum of each is multiplied with its scale and added to those before.
template <typename Format, typename Step, int kRows, Fetched kFetched>
  requires(is_grouped(Format::kFormat))
struct PanelTile<Format, Step, kRows, kFetched> {
  using Sums = Vec[kRows][kPanelVecs];

  SPLITSERVE_INLINE static void run(const Rows<Step, kRows>& x, const char* panel, const char* ahead,
                                    Sums& sums) {
    const int64_t groups = x.depth / kGroupDepth;
    for (int64_t group = 0; group < groups; ++group) add_group(x, panel, ahead, group, sums);
    if (groups * kGroupDepth < x.depth)
      last_group(x, panel + groups * kGroupBytes, groups * kGroupDepth, sums);
  }

 private:
  static constexpr int64_t kGroupBytes = Format::kUnitBytes;
  static constexpr int kBlocks = kGroupDepth / kBlockDepth, kBlockSteps = kBlockDepth / 2;

  SPLITSERVE_INLINE static auto pair_of(const char* group, int64_t block, int j) {
    const char* start = group + Format::kScaleBytes + block * kBlockBytes;
    return [start, j](int v)
               __attribute__((always_inline)) { return Format::decode(Format::load(start, v), j); };
  }

  // What is fetched is spread over the steps: many fetches in a row would hold up the loads behind them.
  SPLITSERVE_INLINE static void add_group(const Rows<Step, kRows>& x, const char* panel, const char* ahead,
                                          int64_t group, Sums& sums) {
    constexpr int kLines = kFetched.lines, kBlockLines = kLines / kBlocks, kOtherLines = kLines % kBlocks;
    Vec part[kRows][kPanelVecs] = {};
    const char* start = panel + group * kGroupBytes;
    const char* fetched = ahead + group * kLines * 64;
    fetch<kFetched.of(kOtherLines)>(fetched + kBlocks * kBlockLines * 64, 0);
    for (int64_t block = 0; block < kBlocks; ++block) {
#pragma GCC unroll 4
      for (int j = 0; j < kBlockSteps; ++j) {
#pragma GCC unroll 8
        for (int line = 0; line < kBlockLines; ++line) {
          if (line * kBlockSteps / kBlockLines == j)
            fetch<kFetched.of(1)>(fetched, block * kBlockLines + line);
        }
        const int64_t k = group * kGroupDepth + block * kBlockDepth + 2 * j;
        add_products<Step>(part, pair_of(start, block, j), x.pair(k));
      }
    }
    add_scaled(start, part, sums);
  }

  // A group that ends with the row.
  static void last_group(const Rows<Step, kRows>& x, const char* group, int64_t first_k, Sums& sums) {
    Vec part[kRows][kPanelVecs] = {};
    for (int64_t k = first_k; k < x.depth; k += 2) {
      const int64_t step = (k - first_k) / 2;
      add_products<Step>(part, pair_of(group, step / kBlockSteps, step % kBlockSteps), x.last(k));
    }
    add_scaled(group, part, sums);
  }

  SPLITSERVE_INLINE static void add_scaled(const char* group, const Vec (&part)[kRows][kPanelVecs],
                                           Sums& sums) {
    // The sums wait in memory: the registers are for those of the group.
    asm volatile("" : "+m"(sums));
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec scale = Format::scale(group, v);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sums[i][v] = fma(part[i][v], scale, sums[i][v]);
    }
  }
};

// Scales of one panel's groups, and sums of the inputs of the rows in work.
struct PanelScales {
  const char* scales;     // see group_scales.h
  const float* row_sums;  // [rows, groups], or nullptr
  const GroupScales* all;

  SPLITSERVE_INLINE PanelScales(const GroupScales& groups, int64_t panel, int64_t row)
      : scales(groups.of_panel(panel)),
        row_sums(groups.row_sums == nullptr ? nullptr : groups.row_sums + row * groups.count),
        all(&groups) {}

  // Those of the group that half a unit of inputs is in, where they are floats.
  SPLITSERVE_INLINE const float* of_half(int64_t half) const {
    return all->floats(scales, all->of_input(half * kHalfDepth), 0);
  }
};

// sums[i][v] += part(i, v) * scale + row_sum(i) * offset, of one group.
template <typename Format, int kRows, typename Part>
SPLITSERVE_INLINE void add_group(const PanelScales& groups, int64_t group, const Part& part,
                                 Vec (&sums)[kRows][kPanelVecs]) {
  alignas(64) float buffer[kPanelCols];
  const float* const scales = scales_of_group(*groups.all, groups.scales, group, 0, buffer);
#pragma GCC unroll 8
  for (int v = 0; v < kPanelVecs; ++v) {
    const Vec scale = Format::columns(scales, v);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) sums[i][v] = fma(part(i, v), scale, sums[i][v]);
  }
  if (groups.row_sums == nullptr) return;
  const bool has_offsets = groups.all->has_offsets;
  const float* const offsets =
      has_offsets ? scales_of_group(*groups.all, groups.scales, group, 1, buffer) : scales;
#pragma GCC unroll 8
  for (int v = 0; v < kPanelVecs; ++v) {
    const Vec own = Format::columns(offsets, v), offset = has_offsets ? own : own * -Format::kZero;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
      sums[i][v] = fma(broadcast(groups.row_sums[i * groups.all->count + group]), offset, sums[i][v]);
  }
}

// Groups of any size with scales beside them, in the same way.
template <typename Format, typename Step, int kRows, Fetched kFetched>
  requires(has_group_scales(Format::kFormat) && !kScalesWeights<Format>)
struct PanelTile<Format, Step, kRows, kFetched> {
  using Sums = Vec[kRows][kPanelVecs];

  SPLITSERVE_INLINE static void run(const Rows<Step, kRows>& x, const char* panel, const char* ahead,
                                    const PanelScales& groups, Sums& sums) {
    constexpr int kAtOnce = kRows <= kFewRows ? 2 : 1;
    const int64_t depth = groups.all->depth, whole = x.depth / depth;
    int64_t group = 0;
    for (; group + kAtOnce <= whole; group += kAtOnce) {
      add_groups<kAtOnce>(x, panel, ahead, groups, group, sums);
    }
    if (group < whole) add_groups<1>(x, panel, ahead, groups, group++, sums);
    if (group * depth < x.depth) last_group(x, panel, groups, group, sums);
  }

 private:
  template <int kCount>
  SPLITSERVE_INLINE static void add_groups(const Rows<Step, kRows>& x, const char* panel, const char* ahead,
                                           const PanelScales& groups, int64_t first, Sums& sums) {
    const int64_t halves = groups.all->depth / kHalfDepth;  // of a group
    Vec parts[kCount][kRows][kPanelVecs] = {};
    x.mode.enter(parts);
    for (int64_t i = 0; i < halves; ++i) {
#pragma GCC unroll 2
      for (int g = 0; g < kCount; ++g)
        fetch<kFetched.of(kFetched.lines / 2)>(ahead, (first + g) * halves + i);
#pragma GCC unroll 8
      for (int j = 0; j < kHalfPairs; ++j) {
#pragma GCC unroll 2
        for (int g = 0; g < kCount; ++g) {
          const int64_t half = (first + g) * halves + i;
          add_products<Step>(parts[g], pair_of(panel, half, j), x.pair(half * kHalfDepth + 2 * j));
        }
      }
    }
    x.mode.leave(parts);
#pragma GCC unroll 2
    for (int g = 0; g < kCount; ++g) add_part(groups, first + g, parts[g], sums);
  }

  // A group that ends with the row.
  static void last_group(const Rows<Step, kRows>& x, const char* panel, const PanelScales& groups,
                         int64_t group, Sums& sums) {
    Vec part[kRows][kPanelVecs] = {};
    x.mode.enter(part);
    for (int64_t k = group * groups.all->depth; k < x.depth; k += 2) {
      add_products<Step>(part, pair_of(panel, k / kHalfDepth, k % kHalfDepth / 2), x.last(k));
    }
    x.mode.leave(part);
    add_part(groups, group, part, sums);
  }

  SPLITSERVE_INLINE static auto pair_of(const char* panel, int64_t half, int j) {
    const char* start = panel + half * Format::kHalfBytes;
    return [start, j](int v) __attribute__((always_inline)) { return Format::operand(start, v, j); };
  }

  SPLITSERVE_INLINE static void add_part(const PanelScales& groups, int64_t group,
                                         const Vec (&part)[kRows][kPanelVecs], Sums& sums) {
    // The sums wait in memory: the registers are for those of the group.
    asm volatile("" : "+m"(sums));
    add_group<Format>(
        groups, group, [&part](int i, int v) __attribute__((always_inline)) { return part[i][v]; }, sums);
  }
};

// The same where weights are scaled before they are multiplied: there is one sum of all groups.
template <typename Format, typename Step, int kRows, Fetched kFetched>
  requires(kScalesWeights<Format>)
struct PanelTile<Format, Step, kRows, kFetched> {
  using Sums = Vec[kRows][kPanelVecs];

  SPLITSERVE_INLINE static void run(const Rows<Step, kRows>& x, const char* panel, const char* ahead,
                                    const PanelScales& groups, Sums& sums) {
    groups.all->has_offsets ? add_groups<true>(x, panel, ahead, groups, sums)
                            : add_groups<false>(x, panel, ahead, groups, sums);
  }

 private:
  template <bool kHasOffsets>
  SPLITSERVE_INLINE static void add_groups(const Rows<Step, kRows>& x, const char* panel, const char* ahead,
                                           const PanelScales& groups, Sums& sums) {
    const int64_t whole = x.depth / kHalfDepth;
    int64_t half = 0;
    for (; half < whole; ++half) {
      fetch<kFetched.of(kFetched.lines / 2)>(ahead, half);
      const float* own = groups.of_half(half);
#pragma GCC unroll 8
      for (int j = 0; j < kHalfPairs; ++j)
        add_products<Step>(sums, pair_of<kHasOffsets>(panel, half, j, own),
                           x.pair(half * kHalfDepth + 2 * j));
    }
    const float* own = groups.of_half(half);
    for (int64_t k = half * kHalfDepth; k < x.depth; k += 2)
      add_products<Step>(sums, pair_of<kHasOffsets>(panel, half, k % kHalfDepth / 2, own), x.last(k));
  }

  template <bool kHasOffsets>
  SPLITSERVE_INLINE static auto pair_of(const char* panel, int64_t half, int j, const float* scales) {
    const char* start = panel + half * Format::kHalfBytes;
    return [start, j, scales](int v) __attribute__((always_inline)) {
      return scaled<Format, kHasOffsets>(Format::operand(start, v, j), scales, v);
    };
  }
};

}  // namespace splitserve::SPLITSERVE_ISA
