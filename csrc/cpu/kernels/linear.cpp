// Linear layer on weights as checkpoints store them: out[t, n] = x[t] . weight[n] + bias[n].
#include "cpu/linear.h"

#include "cpu/dot_tile.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// A block of rows of x stays in the L2 cache while the weights stream past it once.
inline constexpr int64_t kRowBlockBytes = 384 * 1024;
inline constexpr int64_t kColsPerTask = 64;
// Columns read side by side when there is a single row: enough independent sums to hide the latency of one.
inline constexpr int kSingleRowCols = 8;

float bias_at(const float* bias, int64_t n) { return bias[n]; }
float bias_at(const BFloat16* bias, int64_t n) { return load_partial(bias + n, 1)[0]; }

// sums[i * kCols + j], plus the bias of column j, to the tile of `out` at (row, col); converted a register at
// a time.
template <typename T, typename Out, int kRows, int kCols>
SPLITSERVE_INLINE void write_tile(const LinearParams& p, int64_t row, int64_t col, float* sums) {
  constexpr int kCount = kRows * kCols;
  constexpr int kPadded = (kCount + kLanes - 1) / kLanes * kLanes;
  float bias[kPadded] = {};
  if (p.bias != nullptr) {
    for (int j = 0; j < kCols; ++j) {
      const float value = bias_at(static_cast<const T*>(p.bias), col + j);
      for (int i = 0; i < kRows; ++i) bias[i * kCols + j] = value;
    }
  }
  Out converted[kPadded];
  for (int k = 0; k < kPadded; k += kLanes) store(converted + k, load(sums + k) + load(bias + k));
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride + col;
  for (int i = 0; i < kRows; ++i)
    std::memcpy(out + i * p.out_stride, converted + i * kCols, kCols * sizeof(Out));
}

template <typename T, typename Out, int kRows, int kCols>
void tile(const LinearParams& p, int64_t row, int64_t col) {
  const T* x[kRows];
  const T* weight[kCols];
  for (int i = 0; i < kRows; ++i) x[i] = static_cast<const T*>(p.x) + (row + i) * p.x_stride;
  for (int j = 0; j < kCols; ++j) weight[j] = static_cast<const T*>(p.weight) + (col + j) * p.weight_stride;
  float sums[kRows * kCols + kLanes];
  dot_tile<T, kRows, kCols>(x, weight, p.depth, sums);
  write_tile<T, Out, kRows, kCols>(p, row, col, sums);
}

// The last `rows` < kRows + 1 rows of a block.
template <typename T, typename Out, int kRows, int kCols>
void last_rows(const LinearParams& p, int64_t rows, int64_t row, int64_t col) {
  if (rows == kRows) return tile<T, Out, kRows, kCols>(p, row, col);
  if constexpr (kRows > 1) last_rows<T, Out, kRows - 1, kCols>(p, rows, row, col);
}

// All rows of a block against kCols columns, which meanwhile sit in the L1 cache.
template <typename T, typename Out, int kCols>
void column_strip(const LinearParams& p, int64_t row, int64_t row_end, int64_t col) {
  for (; row + kTileRows <= row_end; row += kTileRows) tile<T, Out, kTileRows, kCols>(p, row, col);
  if (row < row_end) last_rows<T, Out, kTileRows - 1, kCols>(p, row_end - row, row, col);
}

template <typename T, typename Out>
void block(const LinearParams& p, int64_t row, int64_t row_end, int64_t col, int64_t col_end) {
  if (row_end - row == 1) {
    for (; col + kSingleRowCols <= col_end; col += kSingleRowCols)
      tile<T, Out, 1, kSingleRowCols>(p, row, col);
  }
  for (; col + kTileCols <= col_end; col += kTileCols) column_strip<T, Out, kTileCols>(p, row, row_end, col);
  for (; col < col_end; ++col) column_strip<T, Out, 1>(p, row, row_end, col);
}

template <typename T, typename Out>
void run(const LinearParams& p) {
  int64_t rows_per_block = kRowBlockBytes / (p.depth * static_cast<int64_t>(sizeof(T)) + 1);
  rows_per_block = rows_per_block / kTileRows * kTileRows;
  if (rows_per_block < kTileRows) rows_per_block = kTileRows;
  const int64_t row_blocks = (p.rows + rows_per_block - 1) / rows_per_block;
  const int64_t col_blocks = (p.cols + kColsPerTask - 1) / kColsPerTask;
  parallel_for(row_blocks * col_blocks, p.rows * p.cols * p.depth, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / col_blocks * rows_per_block, col = task % col_blocks * kColsPerTask;
      const int64_t row_end = row + rows_per_block < p.rows ? row + rows_per_block : p.rows;
      const int64_t col_end = col + kColsPerTask < p.cols ? col + kColsPerTask : p.cols;
      block<T, Out>(p, row, row_end, col, col_end);
    }
  });
}

}  // namespace

void linear(const LinearParams& params) {
  if (params.dtype == DType::kFloat32) return run<float, float>(params);
  if (params.out_dtype == DType::kFloat32) return run<BFloat16, float>(params);
  run<BFloat16, BFloat16>(params);
}

}  // namespace splitserve::SPLITSERVE_ISA
