// The products of some rows of one expert with some of its columns, by the warps of a thread block.
//
// Every sum runs along the input dimension from its start, in the same order in tiles of any size. So its
// bits depend on the row and the column alone.
#pragma once

#include "cuda/expert_rows.cuh"
#include "cuda/expert_weights.cuh"
#include "cuda/linear_output.cuh"

namespace splitserve::cuda {
inline constexpr int kExpertThreads = 128;
// Of one instruction.
inline constexpr int kExpertRows = 16, kExpertCols = 8;

SPLITSERVE_HOST_DEVICE inline ExpertStarts starts_of(const ExpertLinearParams& p) {
  return {p.starts, p.experts, p.rows};
}

__device__ inline void write(const ExpertLinearParams& p, const ExpertRows& tile, int64_t row, int64_t col,
                             float sum) {
  if (row >= tile.end || col >= p.cols) return;
  const int64_t bias = tile.expert * p.cols + col, at = row * p.out_stride + col;
  if (p.bias != nullptr) sum += load_float(p.bias, p.dtype, bias);
  store_float(p.out, p.out_dtype, at, sum);
}

// Rows and columns of a tile, in units of an instruction's, the latter for each warp; how many steps of
// weights are on their way.
template <int kRowTiles_, int kColTiles_, int kAhead_>
struct ExpertShape {
  static constexpr int kRowTiles = kRowTiles_, kColTiles = kColTiles_, kAhead = kAhead_;
  static constexpr int kTileRows = kExpertRows * kRowTiles,
                       kTileCols = (kExpertThreads / kWarpSize) * kExpertCols * kColTiles;
};
// With few rows per expert reading weights is all there is to do; with many, several share what is read.
using FewRows = ExpertShape<1, 2, 4>;
using ManyRows = ExpertShape<4, 4, 1>;

template <typename Column, typename Shape, bool kAligned>
class ExpertTile {
 public:
  using Half = typename Column::Half;

  __device__ ExpertTile(const ExpertLinearParams& p, const ExpertRows& tile, int64_t first_col)
      : p_(p),
        tile_(tile),
        first_col_(first_col + static_cast<int>(threadIdx.x) / kWarpSize * kExpertCols * Shape::kColTiles) {
    const int64_t last_row = tile.end - 1, last_col = p.cols - 1;
#pragma unroll
    for (int i = 0; i < 2 * Shape::kRowTiles; ++i) {
      const int64_t row = tile.row + at() + 8 * i;
      rows_[i] = static_cast<const Half*>(p.x) + (row < last_row ? row : last_row) * p.x_stride;
    }
#pragma unroll
    for (int i = 0; i < Shape::kColTiles; ++i) {
      const int64_t col = first_col_ + at() + kExpertCols * i;
      columns_[i] = Column(p, tile.expert * p.cols + (col < last_col ? col : last_col));
    }
  }

  __device__ void run() {
    constexpr int kDepth = kRunsPerStep * Column::kRun, kAhead = Shape::kAhead;
    const int steps = static_cast<int>((p_.depth + kDepth - 1) / kDepth);
    typename Column::Run ahead[kAhead][Shape::kColTiles], now[Shape::kColTiles];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) load_columns(j, ahead[j]);
    load_rows(0, 0);
    for (int step = 0; step < steps; step += kAhead) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
#pragma unroll
        for (int i = 0; i < Shape::kColTiles; ++i) now[i] = ahead[j][i];
        load_columns(step + j + kAhead, ahead[j]);
        if (step + j < steps) multiply(step + j, now);
      }
    }
    write_sums();
  }

 private:
  static constexpr int kEights = Column::kRun / 8;

  // What a lane holds: rows and columns lane / 4, and every eighth from there; inputs of run lane % 4.
  __device__ static int at() { return static_cast<int>(threadIdx.x) % kWarpSize / kRunsPerStep; }
  __device__ static int run_of(int step) {
    return step * kRunsPerStep + static_cast<int>(threadIdx.x) % kRunsPerStep;
  }

  __device__ void load_columns(int step, typename Column::Run (&runs)[Shape::kColTiles]) const {
#pragma unroll
    for (int i = 0; i < Shape::kColTiles; ++i) runs[i] = columns_[i].load(run_of(step));
  }

  __device__ void load_rows(int step, int eight) {
    const int begin = run_of(step) * Column::kRun + 8 * eight;
#pragma unroll
    for (int i = 0; i < 2 * Shape::kRowTiles; ++i) {
      x_[i] = load_chunk<kAligned>(rows_[i], begin, static_cast<int>(p_.depth));
    }
  }

  __device__ void multiply(int step, const typename Column::Run (&runs)[Shape::kColTiles]) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      Chunk x[2 * Shape::kRowTiles];
#pragma unroll
      for (int i = 0; i < 2 * Shape::kRowTiles; ++i) x[i] = x_[i];
      load_rows(step + (eight + 1) / kEights, (eight + 1) % kEights);
#pragma unroll
      for (int i = 0; i < Shape::kColTiles; ++i) multiply_eight(x, Column::eight(runs[i], eight), sums_[i]);
    }
  }

  __device__ static void multiply_eight(const Chunk (&x)[2 * Shape::kRowTiles], const Chunk& column,
                                        float (&sums)[Shape::kRowTiles][4]) {
#pragma unroll
    for (int half = 0; half < 4; half += 2) {
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
        const uint32_t a[4] = {x[2 * i].words[half], x[2 * i + 1].words[half], x[2 * i].words[half + 1],
                               x[2 * i + 1].words[half + 1]};
        mma<Half>(sums[i], a, column.words[half], column.words[half + 1]);
      }
    }
  }

  __device__ void write_sums() const {
    const int pair = static_cast<int>(threadIdx.x) % kRunsPerStep * 2;
#pragma unroll
    for (int i = 0; i < Shape::kColTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4 * Shape::kRowTiles; ++j) {
        write(p_, tile_, tile_.row + at() + 8 * (j / 2), first_col_ + kExpertCols * i + pair + j % 2,
              sums_[i][j / 4][j % 4]);
      }
    }
  }

  const ExpertLinearParams& p_;
  const ExpertRows& tile_;
  int64_t first_col_;
  const Half* rows_[2 * Shape::kRowTiles];
  Column columns_[Shape::kColTiles];
  Chunk x_[2 * Shape::kRowTiles];
  float sums_[Shape::kColTiles][Shape::kRowTiles][4] = {};
};

}  // namespace splitserve::cuda
