// How the weights of a panel become the tiles of AMX that rows are multiplied with: bfloat16, a step of 32
// inputs at a time, or of 16 where that is a group.
#pragma once

#include "cpu/amx.h"
#include "cpu/fetch.h"
#include "cpu/panel_tile.h"
#include "cpu/unpack_int8.h"

#if defined(__AMX_BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Weights of 32 inputs, which are one step here, as bfloat16: 16 rows of a pair of inputs of each column.
inline constexpr int64_t kTileStepBytes = kTileDepth * kPanelCols * 2;
inline constexpr int64_t kTileWeightStride = kPanelCols * 4;
// The most steps whose weights stay in the L1 cache while several passes of rows multiply with them: they
// fill a third of it, since rows pass through it too, and another thread of the core may do the same.
inline constexpr int64_t kStretchSteps = 8;

// So many cache lines per step are asked for, from `start` on; all at once would keep the loads behind them
// waiting.
struct StepAhead {
  const char* start;
  int64_t lines;
  bool is_stream;  // of this pass, not of a later panel

  // Line `i` of a step, if it has so many.
  SPLITSERVE_INLINE void fetch(int64_t step, int64_t i) const {
    if (i < lines) fetch_line(step * lines + i);
  }
  SPLITSERVE_INLINE void fetch_quarter(int64_t step, int quarter) const {
    for (int64_t i = lines * quarter / 4; i < lines * (quarter + 1) / 4; ++i) fetch_line(step * lines + i);
  }

 private:
  // What is needed late goes to the L2 cache alone: on its way to the L1 cache a line takes one of the few
  // places for misses until memory has answered, and tiles of the rows in work wait for one.
  SPLITSERVE_INLINE void fetch_line(int64_t line) const {
    const char* const at = start + line * kFetchedLineBytes;
    is_stream ? fetch_stream(at) : fetch_to_l2(at);
  }
};

// The weights of a panel as tiles want them: steps that are prepared, in order, before they are used. What is
// asked for meanwhile is spread over the preparation, if there is any.
template <typename Format>
class TileWeights;

// Where they are, except for a last step that is not whole.
template <>
class TileWeights<BFloat16Weights> {
 public:
  static constexpr bool kFetchesAhead = false;
  void begin(const char* panel, int64_t depth, int64_t) {
    packed = panel;
    whole_steps = depth / kTileDepth;
    if (depth % kTileDepth == 0) return;
    const int64_t bytes = ceil_div(depth % kTileDepth, 2) * kTileWeightStride;
    std::memcpy(last, panel + whole_steps * kTileStepBytes, static_cast<size_t>(bytes));
    std::memset(last + bytes, 0, static_cast<size_t>(kTileStepBytes - bytes));
  }
  void prepare(int64_t, const StepAhead&) {}
  const char* step(int64_t step) const { return step < whole_steps ? packed + step * kTileStepBytes : last; }
  static void put_in_order(float*) {}

 private:
  const char* packed;
  int64_t whole_steps;
  alignas(64) char last[kTileStepBytes];
};

template <>
class TileWeights<Int8DotWeights> {
 public:
  static constexpr bool kFetchesAhead = false;
  void begin(const char* panel, int64_t, int64_t) { packed = panel; }
  void prepare(int64_t, const StepAhead&) {}
  const char* step(int64_t step) const { return packed + step * kTileStepBytes; }
  static void put_in_order(float*) {}

 private:
  const char* packed;
};

// In a buffer of the last `kept` steps, a power of two.
template <typename Format>
class UnpackedWeights {
 public:
  static constexpr bool kFetchesAhead = true;
  void begin(const char* panel, int64_t panel_depth, int64_t kept) {
    packed = panel;
    depth = panel_depth;
    mask = kept - 1;
  }
  const char* step(int64_t step) const { return unpacked + (step & mask) * step_bytes; }

 protected:
  char* buffer(int64_t step) { return unpacked + (step & mask) * step_bytes; }

  const char* packed;
  int64_t depth;
  int64_t step_bytes = kTileStepBytes;

 private:
  int64_t mask;
  alignas(64) char unpacked[kStretchSteps * kTileStepBytes];
};

// A pair of inputs of any format of 8 bits.
template <typename Format>
SPLITSERVE_INLINE void unpack_bytes([[maybe_unused]] const Int8Unpacker& unpacker, const char* codes,
                                    int64_t pair, char* out) {
  if constexpr (Format::kFormat == WeightFormat::kFp8Groups) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVecs; ++v) {
      const auto weights = Format::load(codes + pair * Format::kStepBytes, v);
      std::memcpy(out + pair * kTileWeightStride + v * kTileRowBytes, &weights, sizeof weights);
    }
  } else {
    unpacker.unpack(codes + pair * Int8Weights::kStepBytes, out + pair * kTileWeightStride);
  }
}

// kPairs pairs of inputs of 8 bits, of which the last ones may be missing.
template <typename Format, int kPairs>
SPLITSERVE_INLINE void prepare_bytes(const char* codes, int64_t pairs_left, char* out, int64_t step,
                                     const StepAhead& ahead) {
  const Int8Unpacker unpacker;
  if (pairs_left < kPairs) {
    std::memset(out, 0, kPairs * kTileWeightStride);
    for (int64_t i = 0; i < pairs_left; ++i) unpack_bytes<Format>(unpacker, codes, i, out);
    return;
  }
  // Unrolled, GCC would move what is asked for together.
#pragma GCC unroll 1
  for (int64_t i = 0; i < kPairs; ++i) {
    ahead.fetch(step, i);
    unpack_bytes<Format>(unpacker, codes, i, out);
  }
}

// Columns leave the look-ups in another order.
inline void put_int8_in_order(float* sums) {
  Vec row[kPanelVecs] = {load(sums), load(sums + kLanes)};
  Int8Weights::put_in_order(row);
  store(sums, row[0]);
  store(sums + kLanes, row[1]);
}

template <>
class TileWeights<Int8Weights> : public UnpackedWeights<Int8Weights> {
 public:
  SPLITSERVE_INLINE void prepare(int64_t step, const StepAhead& ahead) {
    constexpr int kPairs = kTileDepth / 2;
    prepare_bytes<Int8Weights, kPairs>(packed + step * kPairs * Int8Weights::kStepBytes,
                                       ceil_div(depth - step * kTileDepth, 2), buffer(step), step, ahead);
  }
  static void put_in_order(float* sums) { put_int8_in_order(sums); }
};

// kBlocks blocks of codes of 4 bits.
template <typename Format, int kBlocks>
SPLITSERVE_INLINE void prepare_nibbles(const char* codes, char* out, int64_t step, const StepAhead& ahead) {
  constexpr int kBlockPairs = kBlockDepth / 2;
#pragma GCC unroll 4
  for (int block = 0; block < kBlocks; ++block) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVecs; ++v) {
      ahead.fetch(step, block * kPanelVecs + v);
      const UintVec nibbles = Format::load(codes + block * kBlockBytes, v);
#pragma GCC unroll 4
      for (int j = 0; j < kBlockPairs; ++j) {
        const auto weights = Format::decode(nibbles, j);
        std::memcpy(out + (block * kBlockPairs + j) * kTileWeightStride + v * kTileRowBytes, &weights,
                    sizeof weights);
      }
    }
  }
}

// kHalves halves of codes of 6 bits.
template <typename Format, int kHalves>
SPLITSERVE_INLINE void prepare_pairs(const char* codes, char* out, int64_t step, const StepAhead& ahead) {
#pragma GCC unroll 1
  for (int half = 0; half < kHalves; ++half, codes += Format::kHalfBytes) {
#pragma GCC unroll 8
    for (int pair = 0; pair < kHalfPairs; ++pair, out += kTileWeightStride) {
      ahead.fetch(step, half * kHalfPairs + pair);
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVecs; ++v) {
        const auto weights = Format::operand(codes, v, pair);
        std::memcpy(out + v * kTileRowBytes, &weights, sizeof weights);
      }
    }
  }
}

// A step is a group of codes of 4 bits, its scales before it.
template <typename Format>
  requires(is_grouped(Format::kFormat))
class TileWeights<Format> : public UnpackedWeights<Format> {
 public:
  SPLITSERVE_INLINE void prepare(int64_t step, const StepAhead& ahead) {
    constexpr int kBlocks = kGroupDepth / kBlockDepth;
    ahead.fetch(step, kBlocks * kPanelVecs);
    prepare_nibbles<Format, kBlocks>(group(step) + Format::kScaleBytes, this->buffer(step), step, ahead);
  }

  int64_t steps_per_group() const { return 1; }

  // totals[i][v] += part(i, v) * scale
  template <int kRows, typename Part>
  SPLITSERVE_INLINE void add_group(const PanelScales&, int64_t step, const Part& part,
                                   Vec (&totals)[kRows][kPanelVecs]) const {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec scale = Format::scale(group(step), v);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) totals[i][v] = fma(part(i, v), scale, totals[i][v]);
    }
  }
  static void put_in_order(float*) {}

 private:
  SPLITSERVE_INLINE const char* group(int64_t step) const { return this->packed + step * Format::kUnitBytes; }
};

// Groups of one or more steps, with scales beside the weights. A step of 16 inputs takes half of the tiles.
template <typename Format>
  requires(has_group_scales(Format::kFormat))
class TileWeights<Format> : public UnpackedWeights<Format> {
 public:
  void set_group(int64_t group_depth) {
    step_depth = group_depth < kTileDepth ? group_depth : kTileDepth;
    group_steps = group_depth / step_depth;
    this->step_bytes = step_depth * kPanelCols * 2;
  }

  SPLITSERVE_INLINE void prepare(int64_t step, const StepAhead& ahead) {
    step_depth == kTileDepth ? prepare_halves<2>(step, ahead) : prepare_halves<1>(step, ahead);
  }

  int64_t depth_of_step() const { return step_depth; }
  int64_t steps_per_group() const { return group_steps; }

  template <int kRows, typename Part>
  SPLITSERVE_INLINE void add_group(const PanelScales& groups, int64_t group, const Part& part,
                                   Vec (&totals)[kRows][kPanelVecs]) const {
    ::splitserve::SPLITSERVE_ISA::add_group<Format>(groups, group, part, totals);
  }
  static void put_in_order(float* sums) {
    if constexpr (!has_code_units(Format::kFormat)) put_int8_in_order(sums);
  }

 private:
  template <int kHalves>
  SPLITSERVE_INLINE void prepare_halves(int64_t step, const StepAhead& ahead) {
    const char* codes = this->packed + step * kHalves * Format::kHalfBytes;
    char* out = this->buffer(step);
    if constexpr (Format::kFormat == WeightFormat::kInt6Groups) {
      prepare_pairs<Format, kHalves>(codes, out, step, ahead);
    } else if constexpr (Format::kFormat != WeightFormat::kInt4Groups) {
      constexpr int kPairs = kHalves * kHalfPairs;
      prepare_bytes<Format, kPairs>(codes, ceil_div(this->depth, 2) - step * kPairs, out, step, ahead);
    } else {
      prepare_nibbles<Format, kHalves * kHalfDepth / kBlockDepth>(codes, out, step, ahead);
    }
  }

  int64_t step_depth, group_steps;
};

// Whether the sums of groups are scaled before they are added up.
template <typename Format>
inline constexpr bool kScalesGroups = is_grouped(Format::kFormat) || has_group_scales(Format::kFormat);

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
