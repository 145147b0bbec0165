// Products of rows with the matrices of their experts. A thread block takes 16 rows of one expert and 128
// columns, as far as there are any; which expert and rows these are, it finds out itself, so that a graph may
// be replayed with another choice.
//
// Every sum runs along the input dimension from its start, in steps of 16. So its bits depend on the row and
// the column alone.
#include "cuda/dispatch.h"
#include "cuda/intrinsics.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kTileRows = 16, kTileCols = 128, kThreads = 128;
// Of a warp, in columns of 8 that one instruction takes.
constexpr int kWarpCols = 32, kColTiles = kWarpCols / 8;

struct Tile {
  int64_t expert, row, end;  // end: of the expert's rows
};

// The index-th tile of 16 rows, experts one after the other; false if there are fewer.
__device__ inline bool find_tile(const ExpertLinearParams& p, int64_t index, Tile* tile) {
  for (int64_t expert = 0; expert < p.experts; ++expert) {
    const int64_t begin = p.starts[expert], end = p.starts[expert + 1];
    const int64_t tiles = ceil_div(end - begin, kTileRows);
    if (index < tiles) {
      *tile = {expert, begin + index * kTileRows, end};
      return begin >= 0 && end <= p.rows;
    }
    index -= tiles;
  }
  return false;
}

// At most so many tiles: a whole one per 16 rows, and one that is not for each expert that has rows.
int64_t most_tiles(const ExpertLinearParams& p) {
  return p.rows / kTileRows + (p.experts < p.rows ? p.experts : p.rows);
}

__device__ inline void write(const ExpertLinearParams& p, const Tile& tile, int64_t row, int64_t col,
                             float sum) {
  if (row >= tile.end || col >= p.cols) return;
  const int64_t bias = tile.expert * p.cols + col, at = row * p.out_stride + col;
  switch (p.dtype) {
    case DType::kFloat32:
      if (p.bias != nullptr) sum += static_cast<const float*>(p.bias)[bias];
      break;
    case DType::kBFloat16:
      if (p.bias != nullptr) sum += to_float(static_cast<const BFloat16*>(p.bias)[bias]);
      break;
    case DType::kFloat16:
      if (p.bias != nullptr) sum += to_float(static_cast<const Float16*>(p.bias)[bias]);
      break;
  }
  switch (p.out_dtype) {
    case DType::kFloat32:
      static_cast<float*>(p.out)[at] = sum;
      break;
    case DType::kBFloat16:
      static_cast<BFloat16*>(p.out)[at] = to<BFloat16>(sum);
      break;
    case DType::kFloat16:
      static_cast<Float16*>(p.out)[at] = to<Float16>(sum);
      break;
  }
}

// Elements k and k + 1 of a row, zeros past its end. kAligned: pairs of all rows lie in whole words.
template <typename Half, bool kAligned>
__device__ inline uint32_t load_pair(const Half* row, int k, int depth) {
  if constexpr (kAligned) {
    return k < depth ? *reinterpret_cast<const uint32_t*>(row + k) : 0u;
  } else {
    const uint32_t low = k < depth ? std::bit_cast<uint16_t>(row[k]) : 0u;
    const uint32_t high = k + 1 < depth ? std::bit_cast<uint16_t>(row[k + 1]) : 0u;
    return low | high << 16;
  }
}

template <typename Half, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    multiply_halves(const __grid_constant__ ExpertLinearParams p, int64_t col_blocks) {
  Tile tile;
  if (!find_tile(p, blockIdx.x / col_blocks, &tile)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int depth = static_cast<int>(p.depth);
  const int64_t first_col = blockIdx.x % col_blocks * kTileCols + warp * kWarpCols;
  // What a lane holds of the fragments: rows and columns lane / 4 (and + 8), inputs 2 * (lane % 4) (and + 8).
  const int at = lane / 4, k0 = lane % 4 * 2;
  const int64_t last_row = tile.end - 1, last_col = p.cols - 1;
  const Half* x = static_cast<const Half*>(p.x);
  const Half* rows[2];
  for (int i = 0; i < 2; ++i) {
    const int64_t row = tile.row + at + 8 * i;
    rows[i] = x + (row < last_row ? row : last_row) * p.x_stride;
  }
  const Half* cols[kColTiles];
  for (int i = 0; i < kColTiles; ++i) {
    const int64_t col = first_col + 8 * i + at;
    cols[i] = static_cast<const Half*>(p.weight) +
              (tile.expert * p.cols + (col < last_col ? col : last_col)) * p.depth;
  }
  float sums[kColTiles][4] = {};
  for (int k = 0; k < depth; k += 16) {
    const uint32_t a[4] = {load_pair<Half, kAligned>(rows[0], k + k0, depth),
                           load_pair<Half, kAligned>(rows[1], k + k0, depth),
                           load_pair<Half, kAligned>(rows[0], k + k0 + 8, depth),
                           load_pair<Half, kAligned>(rows[1], k + k0 + 8, depth)};
#pragma unroll
    for (int i = 0; i < kColTiles; ++i) {
      const uint32_t b0 = load_pair<Half, kAligned>(cols[i], k + k0, depth);
      const uint32_t b1 = load_pair<Half, kAligned>(cols[i], k + k0 + 8, depth);
      mma<Half>(sums[i], a, b0, b1);
    }
  }
#pragma unroll
  for (int i = 0; i < kColTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      write(p, tile, tile.row + at + 8 * (j / 2), first_col + 8 * i + k0 + j % 2, sums[i][j]);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    multiply_floats(const __grid_constant__ ExpertLinearParams p, int64_t col_blocks) {
  Tile tile;
  if (!find_tile(p, blockIdx.x / col_blocks, &tile)) return;
  const int64_t col = blockIdx.x % col_blocks * kTileCols + threadIdx.x;
  if (col >= p.cols) return;
  const float* weight = static_cast<const float*>(p.weight) + (tile.expert * p.cols + col) * p.depth;
  for (int64_t row = tile.row; row < tile.end && row < tile.row + kTileRows; ++row) {
    const float* x = static_cast<const float*>(p.x) + row * p.x_stride;
    float sum = 0.0f;
    for (int64_t k = 0; k < p.depth; ++k) sum = fmaf(x[k], weight[k], sum);
    write(p, tile, row, col, sum);
  }
}

template <typename Half>
void run_halves(const ExpertLinearParams& p, const LaunchShape& shape, int64_t col_blocks,
                cudaStream_t stream) {
  const auto address = reinterpret_cast<intptr_t>(p.x) | reinterpret_cast<intptr_t>(p.weight);
  const bool aligned = address % 4 == 0 && p.x_stride % 2 == 0 && p.depth % 2 == 0;
  with_alignment(aligned, [&]<bool kAligned>() {
    launch("expert_linear", multiply_halves<Half, kAligned>, shape, stream, p, col_blocks);
  });
}

}  // namespace

void expert_linear(const ExpertLinearParams& p, cudaStream_t stream) {
  const int64_t col_blocks = ceil_div(p.cols, kTileCols);
  const LaunchShape shape{most_tiles(p) * col_blocks, kThreads};
  switch (p.dtype) {
    case DType::kFloat32:
      return launch("expert_linear", multiply_floats, shape, stream, p, col_blocks);
    case DType::kBFloat16:
      return run_halves<BFloat16>(p, shape, col_blocks, stream);
    case DType::kFloat16:
      return run_halves<Float16>(p, shape, col_blocks, stream);
  }
}

}  // namespace splitserve::cuda
