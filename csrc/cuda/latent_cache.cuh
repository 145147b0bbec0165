// Brings cached latents of a request to shared memory, a chunk ahead of their use.
#pragma once

#include "cuda/attention_cache.cuh"
#include "cuda/latent_attention.h"

namespace splitserve::cuda {

inline constexpr int kLatentRows = 16, kLatentChunk = 32, kLatentStages = 2;
inline constexpr int kScoreTiles = kLatentChunk / 8;

// Of a row in shared memory, in units of 16 bytes. It is odd, so that eight successive rows put the same
// elements into eight different groups of banks.
inline constexpr int kMostEighths = static_cast<int>(kMaxLatent + kMaxRotary) / 8 + 1;
__device__ inline int row_stride(int width) { return width / 8 + 1; }
static_assert(kLatentUnit % 16 == 0, "a row has an even number of units, and 32 elements at a time");

struct LatentMemory {
  uint4 queries[kLatentRows * kMostEighths];
  uint4 chunks[kLatentStages][kLatentChunk * kMostEighths];
  float4 scores[kScoreTiles][32];
  // Where the positions of a chunk begin, in bytes of the cache; kUnread: nowhere.
  int64_t offsets[2][kLatentChunk];
};

// Brings rows of the cache to shared memory, a chunk ahead of their use.
class LatentReader {
 public:
  __device__ LatentReader(const LatentAttentionParams& params, LatentMemory& memory,
                          const AttentionPiece& piece)
      : p_(params.base), width_(params.width()), memory_(memory), piece_(piece) {}

  __device__ int num_chunks() const { return (piece_.to + kLatentChunk - 1) / kLatentChunk; }
  __device__ const uint4* chunk(int i) const { return memory_.chunks[i % kLatentStages]; }

  // All threads, as for what follows.
  __device__ void start() {
    store_offset(0, block_of(0));
    __syncthreads();
    load(0);
    store_offset(1, block_of(1));
  }

  // Waits for a chunk, after sending the next one on its way into the place of the one before.
  __device__ void next(int i) {
    __syncthreads();
    load(i + 1);
    wait_for_copies<1>();
    __syncthreads();
    // Read now and stored after the arithmetic, which hides the time of the lookup.
    next_block_ = block_of(i + 2);
  }

  __device__ void finish(int i) { store_offset(i + 2, next_block_); }

 private:
  __device__ int block_of(int i) const {
    const int position = i * kLatentChunk + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= kLatentChunk || position >= piece_.to) return -1;
    return CausalView::block_of(p_, piece_.rows, piece_.item.request, position);
  }

  __device__ void store_offset(int i, int block) {
    if (threadIdx.x >= kLatentChunk) return;
    const int slot = (i * kLatentChunk + static_cast<int>(threadIdx.x)) % p_.block_size;
    memory_.offsets[i % 2][threadIdx.x] =
        block < 0 ? kUnread : 2 * (block * p_.block_stride + slot * p_.slot_stride);
  }

  __device__ void load(int i) {
    if (i < num_chunks()) {
      uint4* to = memory_.chunks[i % kLatentStages];
      const int eighths = width_ / 8;
      for (int j = static_cast<int>(threadIdx.x); j < kLatentChunk * eighths; j += kAttentionThreads) {
        const int position = j / eighths, eighth = j % eighths;
        const int64_t from = memory_.offsets[i % 2][position] + eighth * 16;
        copy_async(to + position * row_stride(width_) + eighth, static_cast<const char*>(p_.k) + from,
                   from >= 0 ? 16 : 0);
      }
    }
    // Also where there was nothing to load: the waits count groups.
    commit_copies();
  }

  const AttentionParams& p_;
  int width_;
  LatentMemory& memory_;
  const AttentionPiece& piece_;
  int next_block_ = -1;
};

}  // namespace splitserve::cuda
