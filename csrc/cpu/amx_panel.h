// Rows of x against one panel of packed weights, by the tiles of AMX.
//
// One instruction sums the products of 32 inputs, from zero in a fixed order, and adds them to a running sum,
// or, if the inputs are a group with a scale, they are scaled and then added. So the bits of a sum depend on
// its row and column alone, whatever the number of rows: all of them take this way, a single one too.
#pragma once

#include "cpu/amx_weights.h"

#if defined(__AMX_BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// What rows consist of where they meet tiles of a format, how much of them a step has at most, and how many
// steps' weights stay in the L1 cache while several passes of rows multiply with them.
template <typename Format>
struct TileInput {
  using Element = BFloat16;
  static constexpr int64_t kDepth = kTileDepth, kStretch = kStretchSteps;
};
template <>
struct TileInput<Int8DotWeights> {
  using Element = int8_t;
  // Where no buffer has to be kept beside them, more weights stay in the cache.
  static constexpr int64_t kDepth = kDotDepth, kStretch = 12;
};

// Some rows of x.
template <typename Element>
struct TileRows {
  const Element* data;
  int64_t stride;
  int64_t count;
  int64_t depth;
};

// Rows that pass a panel at once: two tiles of sums in height, or so many of groups that their sums stay in
// vector registers while tiles sum up the groups.
template <typename Format>
inline constexpr int64_t kPassRows = kScalesGroups<Format> ? 14 : 2 * kTileSize;

// Multiplies up to kMaxRows rows with panels, one after the other. Belongs to one thread, which uses tiles
// for nothing else meanwhile.
template <typename Format, int64_t kMaxRows>
class TilePanel {
 public:
  using Element = typename TileInput<Format>::Element;

  // All rows of x with one panel. ahead_of(pass, passes) says what is fetched meanwhile, and
  // write(row, rows, sums) takes finished sums [rows, 32], of some rows twice.
  template <typename AheadOf, typename Write>
  void multiply(const TileRows<Element>& rows_of_x, const char* panel, const PanelScales& groups,
                const AheadOf& ahead_of, const Write& write) {
    x = rows_of_x;
    if constexpr (has_group_scales(Format::kFormat)) weights.set_group(groups.all->depth);
    const int64_t passes = ceil_div(x.count, kPassRows<Format>), rows = ceil_div(x.count, passes);
    const int64_t steps = ceil_div(x.depth, step_depth()),
                  most = TileInput<Format>::kStretch * kMaxDepth / step_depth(),
                  stretches = passes > 1 ? ceil_div(steps, most) : 1;
    int64_t stretch = ceil_div(steps, stretches);
    // Of whole groups.
    if constexpr (kIsGrouped)
      stretch = ceil_div(stretch, weights.steps_per_group()) * weights.steps_per_group();
    shape(rows);
    weights.begin(panel, x.depth, passes > 1 ? kStretchSteps * kMaxDepth / step_depth() : kStepsAtOnce);
    for (int64_t first = 0; first < steps; first += stretch) {
      const int64_t end = first + stretch < steps ? first + stretch : steps;
      for (int64_t pass = 0; pass < passes; ++pass) {
        // All passes have one height, for which tiles are shaped once; the last one begins earlier instead.
        const int64_t row = pass + 1 < passes ? pass * rows : x.count - rows;
        float* const part = sums + (steps > stretch ? pass * rows * kPanelCols : 0);
        StepAhead ahead = ahead_of(pass, passes);
        ahead.lines = ahead.lines * step_depth() / kMaxDepth;
        const Stretch work{row, first, end, pass == 0, ahead, part};
        add(work, groups);
        if (end < steps) continue;
        for (int64_t i = 0; i < rows; ++i) weights.put_in_order(part + i * kPanelCols);
        write(row, rows, part);
      }
    }
  }

 private:
  // Of weights that are multiplied with by one pass: those being prepared and the one in use, a power of two.
  static constexpr int64_t kStepsAtOnce = 4, kStepsAhead = 2;
  // How many groups later the sums of a group are scaled.
  static constexpr int64_t kGroupsBehind = 3, kGroupsKept = 4;
  static constexpr bool kIsGrouped = kScalesGroups<Format>;
  static constexpr int64_t kElementBytes = sizeof(Element), kMaxDepth = TileInput<Format>::kDepth;
  static constexpr int kTop = 4, kBottom = 5, kLeft = 6, kRight = 7;  // registers of rows and of weights

  struct Stretch {
    int64_t row, first_step, end_step;
    bool is_first_pass;
    StepAhead ahead;
    float* sums;

    SPLITSERVE_INLINE void fetch_quarter(int64_t step, int quarter) const {
      if (!is_first_pass || !TileWeights<Format>::kFetchesAhead) ahead.fetch_quarter(step, quarter);
    }
  };

  SPLITSERVE_INLINE int64_t step_depth() const {
    if constexpr (has_group_scales(Format::kFormat)) return weights.depth_of_step();
    return kMaxDepth;
  }

  void shape(int64_t rows) {
    if (rows == shaped_rows && step_depth() == shaped_depth) return;
    shaped_rows = rows;
    shaped_depth = step_depth();
    const int64_t top = rows < kTileSize ? rows : kTileSize, bottom = rows - top;
    TileShapes shapes;
    shapes.set<0, 1>(top, kTileRowBytes);
    shapes.set<kTop>(top, kElementBytes * shaped_depth);
    shapes.set<2, 3>(kIsGrouped ? top : bottom, kTileRowBytes);
    shapes.set<kBottom>(bottom, kTileRowBytes);
    shapes.set<kLeft, kRight>(kElementBytes * shaped_depth / 4, kTileRowBytes);
    shapes.use();
  }

  void add(const Stretch& work, const PanelScales& groups) {
    if constexpr (kIsGrouped) {
      PanelScales own = groups;
      if (own.row_sums != nullptr) own.row_sums += work.row * own.all->count;
      add_groups_of<static_cast<int>(kPassRows<Format>)>(work, own);
    } else {
      shaped_rows > kTileSize ? add_products<2>(work) : add_products<1>(work);
    }
  }

  template <int kSum, int kLeftTile, int kRightTile>
  SPLITSERVE_INLINE static void product() {
    if constexpr (Format::kFormat == WeightFormat::kInt8Dot) {
      tile_dot<kSum, kLeftTile, kRightTile>();
    } else {
      tile_multiply<kSum, kLeftTile, kRightTile>();
    }
  }

  template <int kRowTiles>
  void add_products(const Stretch& work) {
    float* const bottom = work.sums + kTileSize * kPanelCols;
    constexpr int64_t kStride = kPanelCols * 4;
    if (work.first_step == 0) {
      tile_zero<0>(), tile_zero<1>();
      if constexpr (kRowTiles > 1) tile_zero<2>(), tile_zero<3>();
    } else {
      tile_load<0>(work.sums, kStride), tile_load<1>(work.sums + kTileSize, kStride);
      if constexpr (kRowTiles > 1) tile_load<2>(bottom, kStride), tile_load<3>(bottom + kTileSize, kStride);
    }
    each_step(work, [&](const Element* rows, int64_t stride, int64_t step) __attribute__((always_inline)) {
      const char* operands = weights.step(step);
      tile_load<kLeft>(operands, kTileWeightStride);
      tile_load<kTop>(rows, stride * kElementBytes);
      work.fetch_quarter(step, 0);
      product<0, kTop, kLeft>();
      tile_load<kRight>(operands + kTileRowBytes, kTileWeightStride);
      work.fetch_quarter(step, 1);
      product<1, kTop, kRight>();
      if constexpr (kRowTiles > 1) {
        tile_load<kBottom>(rows + kTileSize * stride, stride * kElementBytes);
        work.fetch_quarter(step, 2);
        product<2, kBottom, kLeft>();
        work.fetch_quarter(step, 3);
        product<3, kBottom, kRight>();
      } else {
        work.fetch_quarter(step, 2);
        work.fetch_quarter(step, 3);
      }
    });
    tile_store<0>(work.sums, kStride), tile_store<1>(work.sums + kTileSize, kStride);
    if constexpr (kRowTiles > 1) tile_store<2>(bottom, kStride), tile_store<3>(bottom + kTileSize, kStride);
  }

  template <int kRows>
  void add_groups_of(const Stretch& work, const PanelScales& groups) {
    if (shaped_rows == kRows) return add_groups<kRows>(work, groups);
    if constexpr (kRows > 1) add_groups_of<kRows - 1>(work, groups);
  }

  // Sums of a group go through memory, so that they can be scaled. That happens while tiles sum up later
  // groups: a load waits until what a tile has stored there has reached the cache. Groups take turns with two
  // pairs of registers, so that one is stored while the next one is summed up.
  template <int kRows>
  [[gnu::noinline]] void add_groups(const Stretch& work, const PanelScales& groups) {
    start_preparing(work);
    Vec totals[kRows][kPanelVecs] = {};
    if (work.first_step > 0) std::memcpy(totals, work.sums, sizeof totals);
    const int64_t group_steps = weights.steps_per_group(), first = work.first_step / group_steps,
                  end = ceil_div(work.end_step, group_steps);
    const auto add_scaled = [&](int64_t group) __attribute__((always_inline)) {
      const float* part = parts[group % kGroupsKept];
      weights.add_group(
          groups, group,
          [part](int i, int v)
              __attribute__((always_inline)) { return load(part + i * kPanelCols + v * kLanes); },
          totals);
    };
    for (int64_t group = first; group < end; ++group) {
      group % 2 == 0 ? sum_up<0, 2>(work, group, group > first) : sum_up<2, 0>(work, group, group > first);
      if (group - first >= kGroupsBehind) add_scaled(group - kGroupsBehind);
    }
    end % 2 == 0 ? store_sums<2, 2>(end - 1) : store_sums<0, 2>(end - 1);
    for (int64_t group = end - first > kGroupsBehind ? end - kGroupsBehind : first; group < end; ++group)
      add_scaled(group);
    std::memcpy(work.sums, totals, sizeof totals);
  }

  // The sums of a group in registers kSum and kSum + 1, which are zero before; those of the last group are
  // stored meanwhile.
  template <int kSum, int kLast>
  SPLITSERVE_INLINE void sum_up(const Stretch& work, int64_t group, bool stores_last) {
    const int64_t group_steps = weights.steps_per_group(), first = group * group_steps,
                  whole_end = first + group_steps,
                  end = whole_end < work.end_step ? whole_end : work.end_step;
    for (int64_t step = first; step < end; ++step) {
      prepare_ahead(work, step);
      const Inputs inputs = inputs_of(work, step);
      tile_load<kLeft>(weights.step(step), kTileWeightStride);
      tile_load<kTop>(inputs.data, inputs.stride * kElementBytes);
      work.fetch_quarter(step, 0);
      tile_multiply<kSum, kTop, kLeft>();
      if (step == first && stores_last) store_sums<kLast, 1>(group - 1);
      tile_load<kRight>(weights.step(step) + kTileRowBytes, kTileWeightStride);
      work.fetch_quarter(step, 1);
      tile_multiply<kSum + 1, kTop, kRight>();
      if (step == first && stores_last) store_sums<kLast + 1, 1>(group - 1);
      work.fetch_quarter(step, 2);
      work.fetch_quarter(step, 3);
    }
  }

  // One or both of a group's registers, an even one and the next. To zero them before the next product would
  // make it wait for the last one.
  template <int kSum, int kCount>
  SPLITSERVE_INLINE void store_sums(int64_t group) {
    tile_store<kSum>(parts[group % kGroupsKept] + kSum % 2 * kTileSize, kPanelCols * 4);
    tile_zero<kSum>();
    if constexpr (kCount > 1) store_sums<kSum + 1, kCount - 1>(group);
  }

  // Calls fn(inputs, stride, step) for every step.
  template <typename Fn>
  SPLITSERVE_INLINE void each_step(const Stretch& work, const Fn& fn) {
    start_preparing(work);
    for (int64_t step = work.first_step; step < work.end_step; ++step) {
      prepare_ahead(work, step);
      const Inputs inputs = inputs_of(work, step);
      fn(inputs.data, inputs.stride, step);
    }
  }

  // Weights are prepared two steps ahead by the first pass, so that they are in the cache when a tile is
  // loaded.
  SPLITSERVE_INLINE void start_preparing(const Stretch& work) {
    if constexpr (TileWeights<Format>::kFetchesAhead) prepare_first(work);
  }
  // Once per stretch; in line it would be there again for every number of rows.
  [[gnu::noinline]] void prepare_first(const Stretch& work) {
    const int64_t to_prepare = work.is_first_pass ? work.end_step : 0;
    for (int64_t step = work.first_step; step < work.first_step + kStepsAhead && step < to_prepare; ++step)
      weights.prepare(step, work.ahead);
  }
  SPLITSERVE_INLINE void prepare_ahead(const Stretch& work, int64_t step) {
    if (work.is_first_pass && step + kStepsAhead < work.end_step)
      weights.prepare(step + kStepsAhead, work.ahead);
  }

  // Inputs of the pass's first row, and how far away those of the next one are.
  struct Inputs {
    const Element* data;
    int64_t stride;
  };

  // Those of a step.
  SPLITSERVE_INLINE Inputs inputs_of(const Stretch& work, int64_t step) {
    const Element* rows = x.data + work.row * x.stride + step * step_depth();
    if ((step + 1) * step_depth() <= x.depth) return {rows, x.stride};
    copy_last(rows, x.depth - step * step_depth());
    return {last, step_depth()};
  }

  // The inputs of a step that is not whole, with zeros behind them.
  [[gnu::noinline]] void copy_last(const Element* rows, int64_t depth) {
    std::memset(last, 0, static_cast<size_t>(shaped_rows * step_depth() * kElementBytes));
    for (int64_t i = 0; i < shaped_rows; ++i)
      std::memcpy(last + i * step_depth(), rows + i * x.stride, static_cast<size_t>(depth * kElementBytes));
  }

  TileRows<Element> x;
  int64_t shaped_rows = 0, shaped_depth = 0;
  TileWeights<Format> weights;
  alignas(64) Element last[2 * kTileSize * kMaxDepth];
  alignas(64) float parts[kGroupsKept][kTileSize * kPanelCols];  // sums of the last groups
  // Of all rows, some of them twice, while their stretches follow each other; else of one pass.
  alignas(64) float sums[(kMaxRows + kMaxRows / 8) * kPanelCols];
  const TileUse use;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
