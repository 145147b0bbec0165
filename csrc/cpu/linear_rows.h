// Blocks of rows against panels of a linear layer, in vector registers: which tiles a block is cut into, and
// which weights are fetched meanwhile.
#pragma once

#include "cpu/linear_output.h"
#include "cpu/panel_tile.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// A block of rows of x stays in the outer caches while panels pass it.
inline constexpr int64_t kRowBlockBytes = 320 * 1024;
// How many of the cache lines of its own weights a tile fetches of other ones, and where these begin.
enum class Share { kNone, kQuarter, kHalf, kAll };
struct Ahead {
  const char* start;
  Share share;
};

// The panel in work, and the one its thread works on afterwards, as far as can be told.
struct Panels {
  int64_t current;
  int64_t next;
};

template <typename Format>
const char* panel_of(const LinearParams& p, int64_t panel) {
  return static_cast<const char*>(p.weight) + panel * panel_bytes(Format::kFormat, p.depth);
}

// inputs: those of as many rows, of which the first is `row` of the call.
template <typename Format, typename Step, int kRows, Fetched kFetched>
void panel_tile(const LinearParams& p, const InputRows<typename Step::Input>& inputs, int64_t row,
                int64_t panel, const char* ahead) {
  const Rows<Step, kRows> x(inputs, p.depth);
  Vec sums[kRows][kPanelVecs] = {};
  const char* weights = panel_of<Format>(p, panel);
  if constexpr (has_group_scales(Format::kFormat)) {
    PanelTile<Format, Step, kRows, kFetched>::run(x, weights, ahead, {p.groups, panel, row}, sums);
  } else {
    PanelTile<Format, Step, kRows, kFetched>::run(x, weights, ahead, sums);
  }
  if constexpr (requires { Format::put_in_order(sums[0]); }) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) Format::put_in_order(sums[i]);
  }
  if constexpr (Step::kStreams) {
    if (streams_panel(p, panel * kPanelCols)) return stream(p, row, panel * kPanelCols, sums);
  }
  write<typename Format::X>(p, row, panel * kPanelCols, sums);
}

// Registers of outputs that a tile sums up at a time: with 16 registers half a panel of more than three rows;
// fewer rows read a panel once, as it lies in memory.
template <int kRows>
inline constexpr int kDotVecs = kLanes == 8 && kRows > 3 ? kPanelVecs / 2 : kPanelVecs;

// sums[i][v] += x(i) . weight(v), of operand kOperand of four inputs of rows that are `stride` apart.
template <typename Dot, int kOperand, int kRows, int kVecs>
SPLITSERVE_INLINE void add_operand(IntVec (&sums)[kRows][kVecs], const char* step,
                                   const typename Dot::Input* x, int64_t stride) {
  decltype(Dot::template operand<kOperand>(step)) weights[kVecs];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) weights[v] = Dot::template operand<kOperand>(step + v * kLanes * kDotPair);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    const auto input = Dot::template input<kOperand>(x + i * stride);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sums[i][v] = Dot::accumulate(sums[i][v], weights[v], input);
  }
}

// The same of all four inputs.
template <typename Dot, int kRows, int kVecs>
SPLITSERVE_INLINE void add_dots(IntVec (&sums)[kRows][kVecs], const char* step, const typename Dot::Input* x,
                                int64_t stride) {
  if constexpr (kVecs == 2 && requires { Dot::template operand<0>(step); }) {
    add_operand<Dot, 0>(sums, step, x, stride);
    add_operand<Dot, 1>(sums, step, x, stride);
  } else if constexpr (kLanes == 16) {
    typename Dot::Weights weights[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) weights[v] = Dot::load(step + v * kLanes * kDotPair);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const typename Dot::Inputs inputs = Dot::broadcast(x + i * stride);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[i][v] = Dot::accumulate(sums[i][v], weights[v], inputs);
    }
  } else {
    typename Dot::Inputs inputs[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) inputs[i] = Dot::broadcast(x + i * stride);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const typename Dot::Weights weights = Dot::load(step + v * kLanes * kDotPair);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sums[i][v] = Dot::accumulate(sums[i][v], weights, inputs[i]);
    }
  }
}

// int8 dot: sums are integers, and exact.
template <typename Format, int kRows, Fetched kFetched>
void dot_tile(const LinearParams& p, int64_t row, int64_t panel, const char* ahead) {
  const int64_t depth = ceil_div(p.depth, kDotDepth) * kDotDepth;
  using Dot = typename Format::Dot;
  constexpr int kVecs = kDotVecs<kRows>;
  const auto* x = static_cast<const typename Dot::Input*>(p.codes.codes) + row * depth;
  const char* weights = panel_of<Format>(p, panel);
  Vec scaled[kRows][kPanelVecs];
#pragma GCC unroll 1
  for (int first = 0; first < kPanelVecs; first += kVecs, weights += kVecs * kLanes * kDotPair) {
    IntVec sums[kRows][kVecs] = {};
    for (int64_t unit = 0; unit < depth / (kDotPair * Format::kUnitSteps); ++unit) {
      if (kVecs == kPanelVecs || first == 0) fetch<kFetched>(ahead, unit);
#pragma GCC unroll 2
      for (int j = 0; j < Format::kUnitSteps; ++j) {
        const int64_t step = unit * Format::kUnitSteps + j;
        add_dots<Dot>(sums, weights + step * Format::kStepBytes, x + step * kDotPair, depth);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) scaled[i][first + v] = scaled_dot(p.codes, row + i, sums[i][v]);
    }
  }
  write<BFloat16>(p, row, panel * kPanelCols, scaled);
}

template <typename Format, typename Step, int kRows, Fetched kFetched>
void tile(const LinearParams& p, const InputRows<typename Step::Input>& x, int64_t row, int64_t panel,
          const char* ahead) {
  if constexpr (Format::kFormat == WeightFormat::kInt8Dot) {
    dot_tile<Format, kRows, kFetched>(p, row, panel, ahead);
  } else {
    panel_tile<Format, Step, kRows, kFetched>(p, x, row, panel, ahead);
  }
}

// Cache lines per unit of the format, half of them and a quarter.
template <typename Format>
inline constexpr int kAllLines = (Format::kUnitBytes + 63) / 64;
template <typename Format>
inline constexpr int kHalfLines = (kAllLines<Format> + 1) / 2;
template <typename Format>
inline constexpr int kQuarterLines = (kAllLines<Format> + 3) / 4;

// One of several passes has at least half of the rows that a single one can have.
template <typename Format, int kRows>
inline constexpr bool kMayShare = 2 * kRows >= Format::kMaxRows;

// The tile of rows [row, row + rows), which x begins with; kIsOnly: all rows of a panel are one tile.
template <typename Format, typename Step, bool kIsOnly, int kRows = Format::kMaxRows>
SPLITSERVE_INLINE void tile_of(int64_t rows, const LinearParams& p, const InputRows<typename Step::Input>& x,
                               int64_t row, int64_t panel, const Ahead& ahead) {
  if (rows == kRows) {
    if constexpr (!kIsOnly && kMayShare<Format, kRows>) {
      if (ahead.share == Share::kNone)
        return tile<Format, Step, kRows, Fetched{0, false}>(p, x, row, panel, nullptr);
      if (ahead.share == Share::kHalf)
        return tile<Format, Step, kRows, Fetched{kHalfLines<Format>, false}>(p, x, row, panel, ahead.start);
      if (ahead.share == Share::kQuarter)
        return tile<Format, Step, kRows, Fetched{kQuarterLines<Format>, false}>(p, x, row, panel,
                                                                                ahead.start);
    }
    constexpr Fetched kStream{kAllLines<Format>, true, Step::kFartherBytes};
    return tile<Format, Step, kRows, kStream>(p, x, row, panel, ahead.start);
  }
  if constexpr (kRows > 1) tile_of<Format, Step, kIsOnly, kRows - 1>(rows, p, x, row, panel, ahead);
}

// What pass `pass` of `passes` over a panel fetches. A single pass runs ahead in the stream of weights;
// several, which find the panel in a cache, fetch the next one as evenly as they can, since memory is busy
// for most of the time that up to 32 rows take: half and half, or half and two quarters, or the first four a
// quarter each.
template <typename Format>
Ahead ahead_of(const LinearParams& p, const Panels& panels, int64_t pass, int64_t passes) {
  if (passes == 1) return {panel_of<Format>(p, panels.current) + kStreamAheadBytes, Share::kAll};
  const int64_t num_halves = passes < 4 ? 4 - passes : 0;
  const int64_t halves_before = pass < num_halves ? pass : num_halves;
  const int64_t lines = halves_before * kHalfLines<Format> + (pass - halves_before) * kQuarterLines<Format>;
  if (lines >= kAllLines<Format>) return {nullptr, Share::kNone};
  const int64_t units = panel_bytes(Format::kFormat, p.depth) / Format::kUnitBytes;
  const char* start = panel_of<Format>(p, panels.next) + lines * units * 64;
  return {start, pass < num_halves ? Share::kHalf : Share::kQuarter};
}

// Rows [row, row_end), which x holds, against one panel, in tiles of about equal height.
template <typename Format, typename Step>
void multiply_rows(const LinearParams& p, const InputRows<typename Step::Input>& x, int64_t row,
                   int64_t row_end, const Panels& panels) {
  const int64_t rows = row_end - row, passes = ceil_div(rows, Format::kMaxRows), panel = panels.current;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
    tile_of<Format, Step, false>(end - begin, p, x.from(begin, 0), row + begin, panel,
                                 ahead_of<Format>(p, panels, pass, passes));
  }
}

// The same of rows that are a single tile.
template <typename Format, typename Step>
void multiply_few_rows(const LinearParams& p, const InputRows<typename Step::Input>& x, int64_t row,
                       int64_t row_end, const Panels& panels) {
  tile_of<Format, Step, true>(row_end - row, p, x, row, panels.current, ahead_of<Format>(p, panels, 0, 1));
}

// The same with rows as they are.
template <typename Format>
void panel_rows(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
  using X = typename Format::X;
  const InputRows<X> x{static_cast<const X*>(p.x) + row * p.x_stride, p.x_stride};
  multiply_rows<Format, TileStep<X>>(p, x, row, row_end, panels);
}

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
template <typename Format>
struct BlockRows {
  static constexpr int64_t kLeastRows = Format::kMaxRows, kMostRows = INT64_MAX, kBytes = kRowBlockBytes;
  static void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    panel_rows<Format>(p, row, row_end, panels);
  }
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
