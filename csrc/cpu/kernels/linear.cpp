// Linear layer on packed weights: out[t, n] = x[t] . weight[n] + bias[n]; and experts, each with its own
// rows.
#include "cpu/linear.h"

#include <type_traits>

#include "common/experts.h"
#include "cpu/amx_panel.h"
#include "cpu/panel_tile.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// A block of rows of x stays in the outer caches while panels pass it.
inline constexpr int64_t kRowBlockBytes = 320 * 1024;
// How far ahead of its use a weight that is read once is fetched: a memory access takes as long as this many
// bytes at full bandwidth.
inline constexpr int64_t kStreamAheadBytes = 8192;
// Inputs of int8 weights that are unpacked at a time, to 64 KiB on the stack; and rows of a block when the
// sums go through memory between two stretches, which they do in rows longer than that only.
inline constexpr int64_t kStretchDepth = 1024;
inline constexpr int64_t kMaxPartialRows = kRowBlockBytes / (2 * kStretchDepth);

// How many of the cache lines of its own weights a tile fetches of other ones, and where these begin.
enum class Share { kNone, kQuarter, kHalf, kAll };
struct Ahead {
  const char* start;
  Share share;
};

// Inputs [first_k, first_k + depth) of a panel and the weights that belong to them. Sums that begin or end
// within the row are kept in `partial` [rows of the call][32] meanwhile.
struct Stretch {
  const char* weights;
  int64_t first_k;
  int64_t depth;
  float* partial;
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

// The outputs of any panel from its sums [rows][32].
template <typename X>
[[gnu::noinline]] void write_columns(const LinearParams& p, int64_t row, int64_t rows, int64_t col,
                                     const float* sums) {
  for (int64_t v = 0; v < kPanelVecs && col < p.cols; ++v, col += kLanes) {
    const int64_t count = p.cols - col;
    for (int64_t i = 0; i < rows; ++i) {
      Vec sum = load(sums + i * kPanelCols + v * kLanes);
      if (p.scales != nullptr) sum *= load_up_to(p.scales + col, count);
      if (p.bias != nullptr) sum += load_up_to(static_cast<const X*>(p.bias) + col, count);
      const int64_t offset = (row + i) * p.out_stride + col;
      if (p.out_dtype == DType::kFloat32) {
        store_up_to(static_cast<float*>(p.out) + offset, sum, count);
      } else {
        store_up_to(static_cast<BFloat16*>(p.out) + offset, sum, count);
      }
    }
  }
}

template <typename Out, int kRows>
SPLITSERVE_INLINE void store_whole(Out* out, int64_t stride, const Vec (&sums)[kRows][kPanelVecs]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) store(out + i * stride + v * kLanes, sums[i][v]);
  }
}

// The same; a whole panel without bias, the common case, goes straight from registers.
template <typename X, int kRows>
SPLITSERVE_INLINE void write(const LinearParams& p, int64_t row, int64_t col,
                             Vec (&sums)[kRows][kPanelVecs]) {
  if (p.bias != nullptr || col + kPanelCols > p.cols) {
    float copy[kRows * kPanelCols];
    store_whole(copy, kPanelCols, sums);
    return write_columns<X>(p, row, kRows, col, copy);
  }
  if (p.scales != nullptr) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec scale = load(p.scales + col + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sums[i][v] *= scale;
    }
  }
  const int64_t offset = row * p.out_stride + col;
  if (p.out_dtype == DType::kFloat32)
    return store_whole(static_cast<float*>(p.out) + offset, p.out_stride, sums);
  store_whole(static_cast<BFloat16*>(p.out) + offset, p.out_stride, sums);
}

template <typename Format, int kRows, int kLines>
void tile(const LinearParams& p, int64_t row, int64_t panel, const Stretch& stretch, const char* ahead) {
  using X = typename Format::X;
  Rows<X, kRows> x;
  x.depth = stretch.depth;
  for (int i = 0; i < kRows; ++i) {
    x.data[i] = static_cast<const X*>(p.x) + (row + i) * p.x_stride + stretch.first_k;
  }
  Vec sums[kRows][kPanelVecs] = {};
  if (stretch.first_k > 0) std::memcpy(sums, stretch.partial, sizeof sums);
  PanelTile<Format, kRows, kLines>::run(x, stretch.weights, ahead, sums);
  if (stretch.first_k + stretch.depth < p.depth) {
    std::memcpy(stretch.partial, sums, sizeof sums);
    return;
  }
  if constexpr (requires { Format::put_in_order(sums[0]); }) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) Format::put_in_order(sums[i]);
  }
  write<X>(p, row, panel * kPanelCols, sums);
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

template <typename Format, int kRows = Format::kMaxRows>
SPLITSERVE_INLINE void tile_of(int64_t rows, const LinearParams& p, int64_t row, int64_t panel,
                               const Stretch& stretch, const Ahead& ahead) {
  if (rows == kRows) {
    if constexpr (kMayShare<Format, kRows>) {
      if (ahead.share == Share::kNone) return tile<Format, kRows, 0>(p, row, panel, stretch, nullptr);
      if (ahead.share == Share::kHalf) {
        return tile<Format, kRows, kHalfLines<Format>>(p, row, panel, stretch, ahead.start);
      }
      if (ahead.share == Share::kQuarter) {
        return tile<Format, kRows, kQuarterLines<Format>>(p, row, panel, stretch, ahead.start);
      }
    }
    return tile<Format, kRows, kAllLines<Format>>(p, row, panel, stretch, ahead.start);
  }
  if constexpr (kRows > 1) tile_of<Format, kRows - 1>(rows, p, row, panel, stretch, ahead);
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

// Rows [row, row_end) against one panel, in tiles of about equal height.
template <typename Format>
void panel_rows(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
  const int64_t rows = row_end - row, passes = ceil_div(rows, Format::kMaxRows), panel = panels.current;
  const Stretch whole{panel_of<Format>(p, panel), 0, p.depth, nullptr};
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
    tile_of<Format>(end - begin, p, row + begin, panel, whole, ahead_of<Format>(p, panels, pass, passes));
  }
}

// The same for many rows and int8: the weights become bfloat16 once for all of them, a stretch at a time.
// Products and their order are those of panel_rows, and so are the bits.
template <typename Format>
void unpacked_rows(const LinearParams& p, int64_t row, int64_t row_end, int64_t panel) {
  const int64_t rows = row_end - row, passes = ceil_div(rows, BFloat16Weights::kMaxRows);
  alignas(64) char weights[kStretchDepth / 2 * BFloat16Weights::kStepBytes];
  alignas(64) float partial[kMaxPartialRows * kPanelCols];
  const char* packed = panel_of<Format>(p, panel);
  for (int64_t k = 0; k < p.depth; k += kStretchDepth) {
    const int64_t depth = p.depth - k < kStretchDepth ? p.depth - k : kStretchDepth;
    const int64_t steps = ceil_div(depth, 2);
    for (int64_t step = 0; step < steps; ++step) {
      Format::unpack(packed + step * Format::kStepBytes, weights + step * BFloat16Weights::kStepBytes);
    }
    packed += steps * Format::kStepBytes;
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
      float* sums = p.depth > kStretchDepth ? partial + begin * kPanelCols : nullptr;
      const Stretch stretch{weights, k, depth, sums};
      // A line per step is what the next stretch takes.
      const Ahead next{packed, pass == 0 ? Share::kHalf : Share::kNone};
      tile_of<BFloat16Weights>(end - begin, p, row + begin, panel, stretch, next);
    }
  }
}

template <typename Format>
void block_rows(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
  if constexpr (requires { Format::unpack; }) {
    // Twice is cheaper than a way through memory.
    if (row_end - row > 2 * Format::kMaxRows) return unpacked_rows<Format>(p, row, row_end, panels.current);
  }
  panel_rows<Format>(p, row, row_end, panels);
}

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
template <typename Format>
struct BlockRows {
  static constexpr int64_t kLeastRows = Format::kMaxRows, kMostRows = INT64_MAX, kBytes = kRowBlockBytes;
  static void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    block_rows<Format>(p, row, row_end, panels);
  }
};

#if defined(__AMX_BF16__)
// The rows of a block and their sums fit half of the L2 cache.
inline constexpr int64_t kTileBlockBytes = 640 * 1024, kTileBlockRows = 640;
// Outputs of so many passes are in no cache, and a pass is over before memory has answered.
inline constexpr int64_t kManyPasses = 8;

// Cache lines per step of tiles.
template <typename Format>
constexpr int64_t lines_per_step(Share share) {
  constexpr int64_t kStepBytes = panel_bytes(Format::kFormat, kTileDepth),
                    kUnits = kStepBytes / Format::kUnitBytes;
  return kUnits * (share == Share::kAll       ? kAllLines<Format>
                   : share == Share::kHalf    ? kHalfLines<Format>
                   : share == Share::kQuarter ? kQuarterLines<Format>
                                              : 0);
}

// The same as write_columns for a whole panel, but row by row: of rows that compete for few cache sets a line
// would be gone before its second half is written.
template <typename Out>
[[gnu::noinline]] void write_rows(const LinearParams& p, int64_t row, int64_t rows, int64_t col,
                                  const float* sums) {
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride + col;
  for (int64_t i = 0; i < rows; ++i, out += p.out_stride, sums += kPanelCols) {
#pragma GCC unroll 2
    for (int64_t v = 0; v < kPanelCols; v += kLanes) {
      Vec sum = load(sums + v);
      if (p.scales != nullptr) sum *= load(p.scales + col + v);
      if (p.bias != nullptr) sum += load(static_cast<const BFloat16*>(p.bias) + col + v);
      store(out + v, sum);
    }
  }
}

template <typename Format>
  requires std::is_same_v<typename Format::X, BFloat16>
struct BlockRows<Format> {
  static constexpr int64_t kLeastRows = 4 * kTileSize, kMostRows = kTileBlockRows, kBytes = kTileBlockBytes;
  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    const TileRows x{static_cast<const BFloat16*>(p.x) + row * p.x_stride, p.x_stride, row_end - row,
                     p.depth};
    tiles.multiply(
        x, panel_of<Format>(p, panels.current),
        [&](int64_t pass, int64_t passes) {
          if (passes >= kManyPasses)
            fetch_outputs(p, row + pass * x.count / passes, row + (pass + 1) * x.count / passes,
                          panels.current);
          const Ahead ahead = ahead_of<Format>(p, panels, pass, passes);
          return StepAhead{ahead.start, lines_per_step<Format>(ahead.share)};
        },
        [&](int64_t first, int64_t rows, const float* sums) {
          write(p, row + first, rows, panels.current * kPanelCols, sums);
        });
  }

 private:
  static void write(const LinearParams& p, int64_t row, int64_t rows, int64_t col, const float* sums) {
    if (col + kPanelCols > p.cols) return write_columns<BFloat16>(p, row, rows, col, sums);
    if (p.out_dtype == DType::kFloat32) return write_rows<float>(p, row, rows, col, sums);
    write_rows<BFloat16>(p, row, rows, col, sums);
  }

  static void fetch_outputs(const LinearParams& p, int64_t row, int64_t row_end, int64_t panel) {
    const int64_t bytes = p.out_dtype == DType::kFloat32 ? 4 : 2;
    const char* out = static_cast<const char*>(p.out) + panel * kPanelCols * bytes;
    for (; row < row_end; ++row) __builtin_prefetch(out + row * p.out_stride * bytes, 1);
  }

  TilePanel<Format, kTileBlockRows> tiles;
};
#endif

// Rows [first, end) of x in blocks that stay in the outer caches while all panels pass them: a task for each
// block and panel.
template <typename Format>
class RowBlocks {
 public:
  RowBlocks(const LinearParams& p, int64_t first, int64_t end)
      : first_(first), rows_(end - first), panels_(ceil_div(p.cols, kPanelCols)) {
    using Rows = BlockRows<Format>;
    int64_t most_rows = Rows::kBytes / (p.depth * static_cast<int64_t>(sizeof(typename Format::X)) + 1);
    if (most_rows < Rows::kLeastRows) most_rows = Rows::kLeastRows;
    if (most_rows > Rows::kMostRows) most_rows = Rows::kMostRows;
    blocks_ = ceil_div(rows_, most_rows);
  }

  int64_t num_tasks() const { return blocks_ * panels_; }

  int64_t panel_of_task(int64_t task) const { return task % panels_; }

  // `next_panel` is the one that this thread works on afterwards.
  void run(const LinearParams& p, int64_t task, int64_t next_panel, BlockRows<Format>* rows) const {
    const int64_t block = task / panels_;
    rows->multiply(p, first_ + rows_ * block / blocks_, first_ + rows_ * (block + 1) / blocks_,
                   {panel_of_task(task), next_panel});
  }

 private:
  int64_t first_, rows_, panels_, blocks_;
};

// The task that a thread works on after `task` of [begin, end): threads take parts by turns.
int64_t task_after(int64_t task, int64_t begin, int64_t end) {
  return task + 1 < end ? task + 1 : begin + (end - begin) * num_threads();
}

template <typename Format>
void run(const LinearParams& p) {
  const RowBlocks<Format> blocks(p, 0, p.rows);
  parallel_for(blocks.num_tasks(), p.rows * p.cols * p.depth, [&](int64_t begin, int64_t end) {
    BlockRows<Format> rows;
    for (int64_t task = begin; task < end; ++task) {
      blocks.run(p, task, blocks.panel_of_task(task_after(task, begin, end)), &rows);
    }
  });
}

// One expert's part of a call: its own weights, and all rows' places.
template <typename Format>
LinearParams params_of(const ExpertLinearParams& p, int64_t expert) {
  LinearParams own = p.linear;
  const int64_t panels = ceil_div(own.cols, kPanelCols);
  own.weight = panel_of<Format>(own, expert * panels);
  own.x = static_cast<const typename Format::X*>(own.x) + expert * p.x_expert_stride;
  own.out = static_cast<char*>(own.out) + expert * p.out_expert_stride * dtype_bytes(own.out_dtype);
  if (own.scales != nullptr) own.scales += expert * own.cols;
  if (own.bias != nullptr) own.bias = static_cast<const typename Format::X*>(own.bias) + expert * own.cols;
  return own;
}

// The tasks of all experts, one expert after the other.
template <typename Format>
void run_experts(const ExpertLinearParams& p) {
  const int64_t panels = ceil_div(p.linear.cols, kPanelCols);
  int64_t firsts[kMaxExperts + 1];  // first task of each expert
  firsts[0] = 0;
  for (int64_t expert = 0; expert < p.experts; ++expert) {
    const RowBlocks<Format> blocks(p.linear, p.first_row(expert), p.end_row(expert));
    firsts[expert + 1] = firsts[expert] + blocks.num_tasks();
  }
  const auto expert_of = [&](int64_t task, int64_t expert) {
    while (firsts[expert + 1] <= task) ++expert;
    return expert;
  };
  const int64_t passes = p.starts == nullptr ? p.experts : 1;
  const int64_t tasks = firsts[p.experts], work = passes * p.linear.rows * p.linear.cols * p.linear.depth;
  parallel_for(tasks, work, [&](int64_t begin, int64_t end) {
    BlockRows<Format> rows;
    for (int64_t task = begin, expert = 0; task < end;) {
      expert = expert_of(task, expert);
      const LinearParams own = params_of<Format>(p, expert);
      const RowBlocks<Format> blocks(own, p.first_row(expert), p.end_row(expert));
      for (; task < end && task < firsts[expert + 1]; ++task) {
        const int64_t after = task_after(task, begin, end), next = after < tasks ? after : task;
        const int64_t next_expert = expert_of(next, expert);
        // Panels of all experts lie one behind the other.
        const int64_t panel = blocks.panel_of_task(next - firsts[next_expert]);
        blocks.run(own, task - firsts[expert], (next_expert - expert) * panels + panel, &rows);
      }
    }
  });
}

}  // namespace

void linear(const LinearParams& params) {
  switch (params.format) {
    case WeightFormat::kFloat32:
      return run<Float32Weights>(params);
    case WeightFormat::kBFloat16:
      return run<BFloat16Weights>(params);
    case WeightFormat::kInt8:
      return run<Int8Weights>(params);
    case WeightFormat::kInt4:
      return run<Int4Weights>(params);
    case WeightFormat::kMxfp4:
      return run<Mxfp4Weights>(params);
  }
}

void expert_linear(const ExpertLinearParams& params) {
  switch (params.linear.format) {
    case WeightFormat::kFloat32:
      return run_experts<Float32Weights>(params);
    case WeightFormat::kBFloat16:
      return run_experts<BFloat16Weights>(params);
    case WeightFormat::kInt8:
      return run_experts<Int8Weights>(params);
    case WeightFormat::kInt4:
      return run_experts<Int4Weights>(params);
    case WeightFormat::kMxfp4:
      return run_experts<Mxfp4Weights>(params);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
