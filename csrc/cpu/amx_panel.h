// Rows of x against one panel of packed weights, by the tiles of AMX.
//
// One instruction sums the products of 32 inputs, from zero in a fixed order, and adds them to a running sum,
// or, if the inputs are a group with a scale, they are scaled and then added. So the bits of a sum depend on
// its row and column alone, whatever the number of rows: all of them take this way, a single one too.
#pragma once

#include "cpu/amx.h"
#include "cpu/weight_formats.h"

#if defined(__AMX_BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Weights of 32 inputs, which are one step here, as bfloat16: 16 rows of a pair of inputs of each column.
inline constexpr int64_t kTileStepBytes = kTileDepth * kPanelCols * 2;
inline constexpr int64_t kTileWeightStride = kPanelCols * 4;
// The most steps whose weights stay in the L1 cache while several passes of rows multiply with them: they
// fill a third of it, since rows pass through it too, and another thread of the core may do the same.
inline constexpr int64_t kStretchSteps = 8;

// Some rows of x.
struct TileRows {
  const BFloat16* data;
  int64_t stride;
  int64_t count;
  int64_t depth;
};

// So many cache lines per step are asked for, from `start` on; all at once would keep the loads behind them
// waiting.
struct StepAhead {
  const char* start;
  int64_t lines;

  // Line `i` of a step, if it has so many.
  SPLITSERVE_INLINE void fetch(int64_t step, int64_t i) const {
    if (i < lines) __builtin_prefetch(start + (step * lines + i) * 64);
  }
  SPLITSERVE_INLINE void fetch_quarter(int64_t step, int quarter) const {
    for (int64_t i = lines * quarter / 4; i < lines * (quarter + 1) / 4; ++i)
      __builtin_prefetch(start + (step * lines + i) * 64);
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

// In a buffer of the last `kept` steps.
template <typename Format>
class UnpackedWeights {
 public:
  static constexpr bool kFetchesAhead = true;
  void begin(const char* panel, int64_t panel_depth, int64_t kept) {
    packed = panel;
    depth = panel_depth;
    mask = kept - 1;
  }
  const char* step(int64_t step) const { return unpacked + (step & mask) * kTileStepBytes; }

 protected:
  char* buffer(int64_t step) { return unpacked + (step & mask) * kTileStepBytes; }

  const char* packed;
  int64_t depth;

 private:
  int64_t mask;
  alignas(64) char unpacked[kStretchSteps * kTileStepBytes];
};

template <>
class TileWeights<Int8Weights> : public UnpackedWeights<Int8Weights> {
 public:
  SPLITSERVE_INLINE void prepare(int64_t step, const StepAhead& ahead) {
    constexpr int kPairs = kTileDepth / 2;
    char* out = buffer(step);
    const char* codes = packed + step * kPairs * Int8Weights::kStepBytes;
    const int64_t left = ceil_div(depth - step * kTileDepth, 2);
    if (left < kPairs) {
      std::memset(out, 0, kTileStepBytes);
      for (int64_t i = 0; i < left; ++i) unpack(codes, i, out);
      return;
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kPairs; ++i) {
      ahead.fetch(step, i);
      unpack(codes, i, out);
    }
  }

  // Columns leave the look-ups in another order.
  static void put_in_order(float* sums) {
    Vec row[kPanelVecs] = {load(sums), load(sums + kLanes)};
    Int8Weights::put_in_order(row);
    store(sums, row[0]);
    store(sums + kLanes, row[1]);
  }

 private:
  // As Int8Weights::load, by look-ups of 64 bytes, which Intel's processors make in one operation instead of
  // three. From 64 on the exponent is always the same, so the lower byte is twice the magnitude.
  SPLITSERVE_INLINE static void unpack(const char* codes_of_panel, int64_t pair, char* out) {
    constexpr int kFirstOrBothOthers = 0xf8, kUpperByte = 0x42;
    const __m512i codes = _mm512_loadu_si512(codes_of_panel + pair * Int8Weights::kStepBytes);
    const __m512i magnitudes = _mm512_abs_epi8(codes);
    const __mmask64 is_below = _mm512_movepi8_mask(_mm512_sub_epi8(magnitudes, _mm512_set1_epi8(64)));
    const __m512i low = _mm512_mask_permutexvar_epi8(_mm512_add_epi8(magnitudes, magnitudes), is_below,
                                                     magnitudes, _mm512_load_si512(kMagnitudeBytes.low));
    const __m512i high = _mm512_ternarylogic_epi32(
        _mm512_mask_permutexvar_epi8(_mm512_set1_epi8(kUpperByte), is_below, magnitudes,
                                     _mm512_load_si512(kMagnitudeBytes.high)),
        codes, _mm512_set1_epi8(-128), kFirstOrBothOthers);
    char* const to = out + pair * kTileWeightStride;
    _mm512_store_si512(to, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(to + kTileRowBytes, _mm512_unpackhi_epi8(low, high));
  }
};

// A step is a group of codes of 4 bits.
template <typename Format>
  requires(is_grouped(Format::kFormat))
class TileWeights<Format> : public UnpackedWeights<Format> {
 public:
  SPLITSERVE_INLINE void prepare(int64_t step, const StepAhead& ahead) {
    constexpr int kBlocks = kGroupDepth / kBlockDepth, kBlockPairs = kBlockDepth / 2;
    char* out = this->buffer(step);
    const char* codes = group(step) + Format::kScaleBytes;
    ahead.fetch(step, kBlocks * kPanelVecs);
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

  SPLITSERVE_INLINE Vec scale(int64_t step, int vec) const { return Format::scale(group(step), vec); }
  static void put_in_order(float*) {}

 private:
  SPLITSERVE_INLINE const char* group(int64_t step) const { return this->packed + step * Format::kUnitBytes; }
};

// Rows that pass a panel at once: two tiles of sums in height, or so many of groups that their sums stay in
// vector registers while tiles sum up the groups.
template <typename Format>
inline constexpr int64_t kPassRows = is_grouped(Format::kFormat) ? 14 : 2 * kTileSize;

// Multiplies up to kMaxRows rows with panels, one after the other. Belongs to one thread, which uses tiles
// for nothing else meanwhile.
template <typename Format, int64_t kMaxRows>
class TilePanel {
 public:
  // All rows of x with one panel. ahead_of(pass, passes) says what is fetched meanwhile, and
  // write(row, rows, sums) takes finished sums [rows, 32], of some rows twice.
  template <typename AheadOf, typename Write>
  void multiply(const TileRows& rows_of_x, const char* panel, const AheadOf& ahead_of, const Write& write) {
    x = rows_of_x;
    const int64_t passes = ceil_div(x.count, kPassRows<Format>), rows = ceil_div(x.count, passes);
    const int64_t steps = ceil_div(x.depth, kTileDepth),
                  stretches = passes > 1 ? ceil_div(steps, kStretchSteps) : 1;
    const int64_t stretch = ceil_div(steps, stretches);
    shape(rows);
    weights.begin(panel, x.depth, passes > 1 ? kStretchSteps : kStepsAtOnce);
    for (int64_t first = 0; first < steps; first += stretch) {
      const int64_t end = first + stretch < steps ? first + stretch : steps;
      for (int64_t pass = 0; pass < passes; ++pass) {
        // All passes have one height, for which tiles are shaped once; the last one begins earlier instead.
        const int64_t row = pass + 1 < passes ? pass * rows : x.count - rows;
        float* const part = sums + (steps > stretch ? pass * rows * kPanelCols : 0);
        const Stretch work{row, first, end, pass == 0, ahead_of(pass, passes), part};
        add(work);
        if (end < steps) continue;
        for (int64_t i = 0; i < rows; ++i) weights.put_in_order(part + i * kPanelCols);
        write(row, rows, part);
      }
    }
  }

 private:
  // Of weights that are multiplied with by one pass: the one being prepared and the one in use.
  static constexpr int64_t kStepsAtOnce = 2, kStepsAhead = 1;
  static constexpr bool kIsGrouped = is_grouped(Format::kFormat);
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

  void shape(int64_t rows) {
    if (rows == shaped_rows) return;
    shaped_rows = rows;
    const int64_t top = rows < kTileSize ? rows : kTileSize, bottom = rows - top;
    TileShapes shapes;
    shapes.set<0, 1, kTop>(top, kTileRowBytes);
    shapes.set<2, 3, kBottom>(bottom, kTileRowBytes);
    shapes.set<kLeft, kRight>(kTileSize, kTileRowBytes);
    shapes.use();
  }

  void add(const Stretch& work) {
    if constexpr (kIsGrouped) {
      add_groups_of<static_cast<int>(kPassRows<Format>)>(work);
    } else {
      shaped_rows > kTileSize ? add_products<2>(work) : add_products<1>(work);
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
    each_step(work, [&](const BFloat16* rows, int64_t stride, int64_t step) __attribute__((always_inline)) {
      const char* operands = weights.step(step);
      tile_load<kLeft>(operands, kTileWeightStride);
      tile_load<kTop>(rows, stride * 2);
      work.fetch_quarter(step, 0);
      tile_multiply<0, kTop, kLeft>();
      tile_load<kRight>(operands + kTileRowBytes, kTileWeightStride);
      work.fetch_quarter(step, 1);
      tile_multiply<1, kTop, kRight>();
      if constexpr (kRowTiles > 1) {
        tile_load<kBottom>(rows + kTileSize * stride, stride * 2);
        work.fetch_quarter(step, 2);
        tile_multiply<2, kBottom, kLeft>();
        work.fetch_quarter(step, 3);
        tile_multiply<3, kBottom, kRight>();
      } else {
        work.fetch_quarter(step, 2);
        work.fetch_quarter(step, 3);
      }
    });
    tile_store<0>(work.sums, kStride), tile_store<1>(work.sums + kTileSize, kStride);
    if constexpr (kRowTiles > 1) tile_store<2>(bottom, kStride), tile_store<3>(bottom + kTileSize, kStride);
  }

  template <int kRows>
  void add_groups_of(const Stretch& work) {
    if (shaped_rows == kRows) return add_groups<kRows>(work);
    if constexpr (kRows > 1) add_groups_of<kRows - 1>(work);
  }

  // Sums of a group go through memory, so that they can be scaled; that of the next one does not wait for it.
  template <int kRows>
  [[gnu::noinline]] void add_groups(const Stretch& work) {
    Vec totals[kRows][kPanelVecs] = {};
    if (work.first_step > 0) std::memcpy(totals, work.sums, sizeof totals);
    each_step(work, [&](const BFloat16* rows, int64_t stride, int64_t step) __attribute__((always_inline)) {
      float* const part = parts[step % 2];
      tile_load<kLeft>(weights.step(step), kTileWeightStride);
      tile_load<kTop>(rows, stride * 2);
      work.fetch_quarter(step, 0);
      tile_zero<0>();
      tile_multiply<0, kTop, kLeft>();
      tile_load<kRight>(weights.step(step) + kTileRowBytes, kTileWeightStride);
      work.fetch_quarter(step, 1);
      tile_zero<1>();
      tile_multiply<1, kTop, kRight>();
      work.fetch_quarter(step, 2);
      tile_store<0>(part, kPanelCols * 4);
      tile_store<1>(part + kTileSize, kPanelCols * 4);
      work.fetch_quarter(step, 3);
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVecs; ++v) {
        const Vec scale = weights.scale(step, v);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i)
          totals[i][v] = fma(load(part + i * kPanelCols + v * kLanes), scale, totals[i][v]);
      }
    });
    std::memcpy(work.sums, totals, sizeof totals);
  }

  // Calls fn(inputs, stride, step): the inputs of the pass's first row. Weights are prepared a step ahead, so
  // that they are in the cache when a tile is loaded.
  template <typename Fn>
  SPLITSERVE_INLINE void each_step(const Stretch& work, const Fn& fn) {
    const BFloat16* rows = x.data + work.row * x.stride;
    const int64_t whole = x.depth / kTileDepth < work.end_step ? x.depth / kTileDepth : work.end_step;
    const int64_t to_prepare = work.is_first_pass ? work.end_step : 0;
    for (int64_t step = work.first_step; step < work.first_step + kStepsAhead && step < to_prepare; ++step)
      weights.prepare(step, work.ahead);
    for (int64_t step = work.first_step; step < whole; ++step) {
      if (step + kStepsAhead < to_prepare) weights.prepare(step + kStepsAhead, work.ahead);
      fn(rows + step * kTileDepth, x.stride, step);
    }
    if (whole < work.end_step) {
      copy_last(rows + whole * kTileDepth);
      fn(last, kTileDepth, whole);
    }
  }

  // The inputs of a step that is not whole, with zeros behind them.
  [[gnu::noinline]] void copy_last(const BFloat16* rows) {
    const int64_t depth = x.depth % kTileDepth;
    std::memset(last, 0, static_cast<size_t>(shaped_rows * kTileDepth) * 2);
    for (int64_t i = 0; i < shaped_rows; ++i)
      std::memcpy(last + i * kTileDepth, rows + i * x.stride, static_cast<size_t>(depth) * 2);
  }

  TileRows x;
  int64_t shaped_rows = 0;
  TileWeights<Format> weights;
  alignas(64) BFloat16 last[2 * kTileSize * kTileDepth];
  alignas(64) float parts[2][kTileSize * kPanelCols];  // sums of a group
  // Of all rows, some of them twice, while their stretches follow each other; else of one pass.
  alignas(64) float sums[(kMaxRows + kMaxRows / 8) * kPanelCols];
  const TileUse use;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
