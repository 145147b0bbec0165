// Which rows of a step a thread block multiplies with which expert's matrix: it finds out by itself, so that
// a graph may be replayed with another choice.
#pragma once

#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {

struct ExpertStarts {
  const int32_t* starts;  // [experts + 1]: expert e has the rows starts[e] to starts[e + 1]
  int64_t experts, rows;
};

struct ExpertRows {
  int64_t expert, row, end;  // end: of the expert's rows
};

// The index-th tile of so many rows, experts one after the other; false if there are fewer. By whole warps.
template <int kTileRows>
__device__ inline bool find_rows(const ExpertStarts& p, int64_t index, ExpertRows* tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int64_t first = 0; first < p.experts; first += kWarpSize) {
    const bool exists = first + lane < p.experts;
    const int begin = exists ? p.starts[first + lane] : 0, end = exists ? p.starts[first + lane + 1] : 0;
    const int own = (end - begin + kTileRows - 1) / kTileRows;
    int tiles = own;
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int before = __shfl_up_sync(kWholeWarp, tiles, offset);
      if (lane >= offset) tiles += before;
    }
    const unsigned there = __ballot_sync(kWholeWarp, index < tiles);
    if (there != 0) {
      const int owner = __ffs(static_cast<int>(there)) - 1;
      const int start = __shfl_sync(kWholeWarp, begin, owner), stop = __shfl_sync(kWholeWarp, end, owner);
      index -= __shfl_sync(kWholeWarp, tiles - own, owner);
      *tile = {first + owner, start + index * kTileRows, stop};
      return start >= 0 && stop <= p.rows;
    }
    index -= __shfl_sync(kWholeWarp, tiles, kWarpSize - 1);
  }
  return false;
}

// At most so many tiles: all whole ones, and one that is not for each expert that has rows.
inline int64_t most_tiles(const ExpertStarts& p, int64_t tile_rows) {
  return p.rows / tile_rows + (p.experts < p.rows ? p.experts : p.rows);
}

}  // namespace splitserve::cuda
