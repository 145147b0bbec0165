// Arguments of the kernel that copies KV blocks.
#pragma once

#include "common/dtype.h"

namespace splitserve {

// Where the pieces of each place lie: places below num_blocks are the pool's blocks, the others the host's.
// Strides are in bytes.
struct Places {
  char* pool;
  char* host;
  int64_t num_blocks;
  int64_t pool_piece, pool_block;
  int64_t host_piece, host_block;

  SPLITSERVE_HOST_DEVICE char* at(int64_t place, int64_t piece) const {
    return place < num_blocks ? pool + piece * pool_piece + place * pool_block
                              : host + (place - num_blocks) * host_block + piece * host_piece;
  }
};

struct MoveParams {
  Places places;
  IndexArray from;  // [num_moves], in the CPU's memory, within the places
  IndexArray to;
  int64_t num_moves;
  int64_t pieces;       // of a block
  int64_t piece_bytes;  // contiguous
};

}  // namespace splitserve
