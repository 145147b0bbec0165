// Linear layer on packed weights: out[t, n] = x[t] . weight[n] + bias[n].
#include "cpu/linear.h"

#include "cpu/panel_tile.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// A block of rows of x stays in the outer caches while panels pass it.
inline constexpr int64_t kRowBlockBytes = 320 * 1024;
// How far ahead of its use a weight that is read once is fetched: a memory access takes as long as this many
// bytes at full bandwidth.
inline constexpr int64_t kStreamAheadBytes = 8192;

// Weights to fetch while a tile is computed: `lines` cache lines per step, from `start` on.
struct Ahead {
  const char* start;
  int lines;
};

template <typename T>
const T* panel_of(const LinearParams& p, int64_t panel) {
  return static_cast<const T*>(p.weight) + panel * PackedLayout(p.dtype, p.depth).panel_stride();
}

// One register of the result, `count` of its columns, rounded to out's dtype.
template <typename T>
SPLITSERVE_INLINE void write(const LinearParams& p, int64_t row, int64_t col, Vec sum, int64_t count) {
  if (p.bias != nullptr) sum += load_up_to(static_cast<const T*>(p.bias) + col, count);
  const int64_t offset = row * p.out_stride + col;
  if (p.out_dtype == DType::kFloat32) {
    store_up_to(static_cast<float*>(p.out) + offset, sum, count);
  } else {
    store_up_to(static_cast<BFloat16*>(p.out) + offset, sum, count);
  }
}

template <typename T, int kRows, int kLines>
void tile(const LinearParams& p, int64_t row, int64_t panel, const char* ahead) {
  const T* x[kRows];
  for (int i = 0; i < kRows; ++i) x[i] = static_cast<const T*>(p.x) + (row + i) * p.x_stride;
  Vec sums[kRows][kPanelVecs] = {};
  panel_tile<T, kRows, kLines>(x, panel_of<T>(p, panel), p.depth, ahead, sums);
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      const int64_t col = panel * kPanelCols + v * kLanes;
      if (col < p.cols) write<T>(p, row + i, col, sums[i][v], p.cols - col);
    }
  }
}

template <typename T, int kRows = kMaxTileRows>
SPLITSERVE_INLINE void tile_of(int64_t rows, const LinearParams& p, int64_t row, int64_t panel,
                               const Ahead& ahead) {
  if (rows == kRows) {
    if (ahead.lines == 2) return tile<T, kRows, 2>(p, row, panel, ahead.start);
    if (ahead.lines == 1) return tile<T, kRows, 1>(p, row, panel, ahead.start);
    return tile<T, kRows, 0>(p, row, panel, ahead.start);
  }
  if constexpr (kRows > 1) tile_of<T, kRows - 1>(rows, p, row, panel, ahead);
}

// What pass `pass` of `passes` over a panel fetches. A single pass runs ahead in the stream of weights; of
// several, which find the panel in a cache, the first two fetch the next panel, half each.
template <typename T>
Ahead ahead_of(const LinearParams& p, int64_t panel, int64_t pass, int64_t passes) {
  const T* start = panel_of<T>(p, panel);
  if (passes == 1) return {reinterpret_cast<const char*>(start) + kStreamAheadBytes, 2};
  if (pass >= 2) return {nullptr, 0};
  const T* next = panel_of<T>(p, panel + 1);
  return {reinterpret_cast<const char*>(pass == 0 ? next : next + (next - start) / 2), 1};
}

// Rows [row, row_end) against one panel, in tiles of about equal height.
template <typename T>
void panel_rows(const LinearParams& p, int64_t row, int64_t row_end, int64_t panel) {
  const int64_t rows = row_end - row, passes = ceil_div(rows, kMaxTileRows);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
    tile_of<T>(end - begin, p, row + begin, panel, ahead_of<T>(p, panel, pass, passes));
  }
}

template <typename T>
void run(const LinearParams& p) {
  const int64_t most_rows = kRowBlockBytes / (p.depth * static_cast<int64_t>(sizeof(T)) + 1);
  const int64_t row_blocks = ceil_div(p.rows, most_rows < kMaxTileRows ? kMaxTileRows : most_rows);
  const int64_t panels = ceil_div(p.cols, kPanelCols);
  parallel_for(row_blocks * panels, p.rows * p.cols * p.depth, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t block = task / panels, panel = task % panels;
      panel_rows<T>(p, p.rows * block / row_blocks, p.rows * (block + 1) / row_blocks, panel);
    }
  });
}

}  // namespace

void linear(const LinearParams& params) {
  params.dtype == DType::kFloat32 ? run<float>(params) : run<BFloat16>(params);
}

}  // namespace splitserve::SPLITSERVE_ISA
