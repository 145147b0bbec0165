// The kernel of attention within whole sequences in half precision: a thread block takes one tile of rows.
#pragma once

#include "cuda/attention_half.cuh"

namespace splitserve::cuda {

// The number of a sequence's first tile. Sequences before it may have fewer tiles than these numbers leave to
// them, never more; so a tile's number is found without counting theirs.
template <int kRows>
__device__ int64_t first_tile(const AttentionParams& p, int sequence) {
  return int64_t{p.cu_seqlens_q[sequence]} * p.group / kRows + sequence;
}

// The last sequence whose first tile is not behind this one. All threads.
template <int kRows>
__device__ int sequence_of(const AttentionParams& p, int64_t tile) {
  int begin = 0;
  for (; begin < p.requests; begin += kAttentionThreads) {
    const int own = begin + static_cast<int>(threadIdx.x);
    const int count = __syncthreads_count(own < p.requests && first_tile<kRows>(p, own) <= tile);
    if (count < kAttentionThreads) return begin + count - 1;
  }
  return begin < p.requests ? begin : p.requests - 1;
}

template <typename Half, int kDim>
__global__ void __launch_bounds__(kAttentionThreads, blocks_per_multiprocessor(kDim))
    whole_kernel(const __grid_constant__ AttentionParams p) {
  using Shape = typename Tiles<Half, PlainCache, kDim>::Large;
  constexpr int kRows = large_rows(kDim);
  __shared__ AttentionPiece piece;
  const int64_t tile = blockIdx.x / p.kv_heads;
  const int sequence = sequence_of<kRows>(p, tile);
  if (sequence < 0) return;
  const auto first_row = static_cast<int>(tile - first_tile<kRows>(p, sequence)) * kRows;
  const RequestRows rows = WholeView::rows_of(p, sequence, p.group);
  if (first_row < 0 || first_row >= rows.rows) return;
  if (threadIdx.x == 0) {
    piece.item = {sequence, first_row, kAllSegments, 0, 0};
    piece.rows = rows;
    piece.kv_head = static_cast<int>(blockIdx.x) % p.kv_heads;
    piece.set_positions<WholeView>(kRows);
  }
  __syncthreads();
  AttentionTile<Shape, WholeView>(p, piece, *reinterpret_cast<TileMemory<Shape>*>(dynamic_shared())).run();
}

template <typename Half>
void run_whole(const AttentionParams& p, cudaStream_t stream) {
  with_dim(p.head_dim, [&]<int kDim>() {
    const int64_t tiles = int64_t{p.tokens} * p.group / large_rows(kDim) + p.requests;
    const LaunchShape shape{tiles * p.kv_heads, kAttentionThreads,
                            sizeof(TileMemory<typename Tiles<Half, PlainCache, kDim>::Large>)};
    launch("whole_attention", whole_kernel<Half, kDim>, shape, stream, p);
  });
}

}  // namespace splitserve::cuda
