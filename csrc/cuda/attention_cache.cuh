// Brings the keys and values of a request from paged memory to shared memory, some chunks ahead of their use.
#pragma once

#include "cuda/attention.h"
#include "cuda/intrinsics.cuh"

namespace splitserve::cuda {

// Where 8 elements of a position stand in a chunk, in units of 16 bytes. Eight successive positions put the
// same elements into eight different groups of banks, so that reading a matrix meets no conflict.
template <int kDim>
__device__ inline unsigned swizzled(unsigned position, unsigned eighth) {
  return position * (kDim / 8) + ((eighth & ~7u) | ((eighth ^ position) & 7));
}

// What a thread block works on, in shared memory: registers are scarce.
struct AttentionPiece {
  AttentionItem item;
  RequestRows rows;
  int kv_head;
  int from, to;  // positions that the tile sees, or those of its segment

  __device__ int last_row(int tile_rows) const { return min(item.first_row + tile_rows, rows.rows) - 1; }

  template <typename View>
  __device__ void set_positions(int tile_rows) {
    from = rows.window_start(rows.position(item.first_row));
    to = View::last_seen(rows, rows.position(last_row(tile_rows))) + 1;
    if (item.segment == kAllSegments) return;
    from = max(from, item.segment * kSegment);
    to = min(to, (item.segment + item.num_segments) * kSegment);
  }
};

// The chunks of kChunk positions, from multiples of that on, that hold the positions of a piece.
template <typename View, int kChunk>
class PieceChunks {
 public:
  __device__ PieceChunks(const AttentionParams& params, const AttentionPiece& piece)
      : p_(params), piece_(piece) {}

  __device__ int count() const { return (piece_.to - position_of(0) + kChunk - 1) / kChunk; }
  __device__ int position_of(int chunk) const { return piece_.from / kChunk * kChunk + chunk * kChunk; }
  __device__ int kv_head() const { return piece_.kv_head; }

  // The block that holds this thread's position of a chunk; negative: it is not to be read.
  __device__ int block_of(int chunk) const {
    const int position = position_of(chunk) + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= kChunk || position < piece_.from || position >= piece_.to) return -1;
    return View::block_of(p_, piece_.rows, piece_.item.request, position);
  }

  // Its place there.
  __device__ int slot_of(int chunk) const {
    return (position_of(chunk) + static_cast<int>(threadIdx.x)) % p_.block_size;
  }

 private:
  const AttentionParams& p_;
  const AttentionPiece& piece_;
};

// Negative however far into its row a copy begins, and a multiple of 16.
inline constexpr int64_t kUnread = int64_t{-1} << 32;

template <int kDim, int kChunk, int kStages>
struct CacheStages {
  uint4 keys[kStages][kChunk * kDim / 8];
  uint4 values[kStages][kChunk * kDim / 8];
  // Where the positions of a chunk begin, in bytes of the cache; kUnread: nowhere.
  int64_t offsets[2][kChunk];
};

template <typename View, int kDim, int kChunk, int kStages>
class CacheReader {
 public:
  using Stages = CacheStages<kDim, kChunk, kStages>;

  // Reads the positions of a piece by chunks. What lies outside is zero.
  __device__ CacheReader(const AttentionParams& params, Stages& stages, const AttentionPiece& piece)
      : p_(params), stages_(stages), chunks_(params, piece) {}

  __device__ int num_chunks() const { return chunks_.count(); }
  __device__ int position_of(int chunk) const { return chunks_.position_of(chunk); }
  __device__ const uint4* keys(int chunk) const { return stages_.keys[chunk % kStages]; }
  __device__ const uint4* values(int chunk) const { return stages_.values[chunk % kStages]; }

  // Sends the first chunks on their way. All threads, after a barrier behind the last use of the stages.
  __device__ void start() {
    // Looked up at once, so that they are waited for once.
    int blocks[kStages];
#pragma unroll
    for (int chunk = 0; chunk < kStages; ++chunk) blocks[chunk] = chunks_.block_of(chunk);
#pragma unroll
    for (int chunk = 0; chunk < kStages - 1; ++chunk) {
      store_offset(chunk, blocks[chunk]);
      __syncthreads();
      load(chunk);
    }
    store_offset(kStages - 1, blocks[kStages - 1]);
  }

  // Waits for a chunk; its barrier also says that the chunk before it has been used, so its stage is filled
  // anew.
  __device__ void next(int chunk) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    load(chunk + kStages - 1);
    // Read now and stored after the arithmetic, which hides the time of the lookup.
    next_block_ = chunks_.block_of(chunk + kStages);
  }

  __device__ void finish(int chunk) { store_offset(chunk + kStages, next_block_); }

 private:
  __device__ void store_offset(int chunk, int block) {
    if (threadIdx.x >= kChunk) return;
    stages_.offsets[chunk % 2][threadIdx.x] =
        block < 0 ? kUnread
                  : 2 * (block * p_.block_stride + chunks_.kv_head() * p_.head_stride +
                         chunks_.slot_of(chunk) * p_.slot_stride);
  }

  __device__ void load(int chunk) {
    if (chunk < num_chunks()) {
      // Each thread copies the same eighth of every kStep-th position. Unsigned: quotients are shifts.
      constexpr unsigned kEighths = kDim / 8, kStep = kAttentionThreads / kEighths;
      const unsigned eighth = threadIdx.x % kEighths, bytes_before = eighth * 16;
      const bool is_in_head = static_cast<int>(eighth) * 8 < p_.head_dim;
      uint4* keys = stages_.keys[chunk % kStages];
      uint4* values = stages_.values[chunk % kStages];
#pragma unroll 4
      for (unsigned i = 0; i < kChunk / kStep; ++i) {
        const unsigned position = i * kStep + threadIdx.x / kEighths;
        const int64_t from = stages_.offsets[chunk % 2][position] + bytes_before;
        const int bytes = from >= 0 && is_in_head ? 16 : 0;
        const unsigned to = swizzled<kDim>(position, eighth);
        copy_async(keys + to, static_cast<const char*>(p_.k) + from, bytes);
        copy_async(values + to, static_cast<const char*>(p_.v) + from, bytes);
      }
    }
    // Also where there was nothing to load: the waits count groups.
    commit_copies();
  }

  const AttentionParams& p_;
  Stages& stages_;
  PieceChunks<View, kChunk> chunks_;
  int next_block_ = -1;
};

// Which reader a cache needs: of elements as they are.
struct PlainCache {
  template <int kDim, int kChunk, int kStages>
  using Stages = CacheStages<kDim, kChunk, kStages>;
  template <typename View, int kDim, int kChunk, int kStages>
  using Reader = CacheReader<View, kDim, kChunk, kStages>;
};

}  // namespace splitserve::cuda
