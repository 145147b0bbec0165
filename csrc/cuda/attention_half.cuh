// The kernel of paged attention in half precision: every thread block takes piece after piece of a plan.
#pragma once

#include <algorithm>

#include "cuda/attention_tile.cuh"
#include "cuda/launch.h"

namespace splitserve::cuda {

// As many as registers allow.
constexpr int blocks_per_multiprocessor(int head_dim) { return head_dim <= 64 ? 3 : 2; }

// Beside the tile: the piece of work and what else is static, and what the device keeps of every thread
// block's.
constexpr int64_t kStaticSharedBytes = 128, kReservedSharedBytes = 1024;

// A small tile is bound by memory and keeps more chunks in flight; a large one keeps its sums in that space.
template <typename Half, typename Cache, int kDim>
struct Tiles {
  static constexpr int kGroups = large_rows(kDim) / 16;
  using Small = TileShape<Half, Cache, kDim, 1, 4, 3>;
  using Large = TileShape<Half, Cache, kDim, kGroups, 4 / kGroups, 2>;

  static constexpr int64_t shared_bytes() {
    return sizeof(TileMemory<Small>) > sizeof(TileMemory<Large>) ? sizeof(TileMemory<Small>)
                                                                 : sizeof(TileMemory<Large>);
  }
};

template <typename Shape>
__device__ void run_tile(const AttentionParams& p, const AttentionPiece& piece) {
  AttentionTile<Shape, CausalView>(p, piece, *reinterpret_cast<TileMemory<Shape>*>(dynamic_shared())).run();
}

// Looks up a piece of work; false if there is none of this number. One thread.
__device__ inline bool find(const AttentionParams& p, int work, AttentionPiece* piece) {
  if (work >= p.plan.num_items() * p.kv_heads) return false;
  piece->item = p.plan.items()[work / p.kv_heads];
  piece->kv_head = work % p.kv_heads;
  piece->rows = CausalView::rows_of(p, piece->item.request, p.group);
  piece->set_positions<CausalView>(piece->rows.tile_rows(p.head_dim));
  return true;
}

// The first piece of every thread block is the one of its own number; the others wait for whoever is done
// first.
__device__ inline int next_work(const AttentionParams& p) {
  return static_cast<int>(gridDim.x) + atomicAdd(&p.plan.num_taken(), 1);
}

template <typename Half, typename Cache, int kDim>
__global__ void __launch_bounds__(kAttentionThreads, blocks_per_multiprocessor(kDim))
    attention_kernel(const __grid_constant__ AttentionParams p) {
  using Shapes = Tiles<Half, Cache, kDim>;
  __shared__ AttentionPiece piece;
  __shared__ bool has_work;
  static_assert(sizeof piece + sizeof has_work <= kStaticSharedBytes);
  if (!p.plan.is_for(p.group, p.head_dim, p.kv_heads, p.sliding_window)) __trap();
  int work = static_cast<int>(blockIdx.x);
  while (true) {
    if (threadIdx.x == 0) has_work = find(p, work, &piece);
    __syncthreads();
    if (!has_work) return;
    if (piece.rows.rows <= kSmallRows) {
      run_tile<typename Shapes::Small>(p, piece);
    } else {
      run_tile<typename Shapes::Large>(p, piece);
    }
    // Nobody still reads this piece or its shared memory.
    __syncthreads();
    if (threadIdx.x == 0) work = next_work(p);
  }
}

// Thread blocks that run at once: one that had to wait for room would begin its first piece when others have
// done all the rest. On an A100, and for heads above 128, shared memory has room for fewer than registers.
template <int kDim>
int64_t resident_blocks(int64_t shared_bytes) {
  const int64_t room = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) /
                       (shared_bytes + kStaticSharedBytes + kReservedSharedBytes);
  return std::min<int64_t>(std::max<int64_t>(room, 1), blocks_per_multiprocessor(kDim)) *
         device_attribute(cudaDevAttrMultiProcessorCount);
}

template <typename Half, typename Cache, int kDim>
void launch_attention(const AttentionParams& p, cudaStream_t stream) {
  constexpr int64_t kSharedBytes = Tiles<Half, Cache, kDim>::shared_bytes();
  const int64_t most_work = int64_t{p.plan.max_items} * p.kv_heads;
  const int64_t blocks = std::min(most_work, resident_blocks<kDim>(kSharedBytes));
  launch("paged_attention", attention_kernel<Half, Cache, kDim>, {blocks, kAttentionThreads, kSharedBytes},
         stream, p);
}

// Calls fn.operator()<kDim>() for a head of any size up to 256: it is computed with as if zeros filled it up
// to the next size there is.
template <typename Fn>
auto with_dim(int head_dim, const Fn& fn) {
  if (head_dim <= 64) return fn.template operator()<64>();
  if (head_dim <= 128) return fn.template operator()<128>();
  return fn.template operator()<256>();
}

template <typename Half, typename Cache>
void run_attention(const AttentionParams& p, cudaStream_t stream) {
  with_dim(p.head_dim, [&]<int kDim>() { launch_attention<Half, Cache, kDim>(p, stream); });
}

}  // namespace splitserve::cuda
