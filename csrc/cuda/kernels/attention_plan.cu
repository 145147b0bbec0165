// Divides the query rows of a step into pieces of work: whole tiles, and single segments of tiles that split.
//
// A request whose rows fill one tile at most, decode steps above all, splits where it has several segments,
// there is too little work for all thread blocks otherwise, and the partial results find room. Whether it
// does, and how many segments a piece has, changes no bit of the output. One thread block does all: a plan
// serves every layer of a step.
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 256;
// Beyond so many, the cost of beginning a piece is lost in that of reading it.
constexpr int64_t kMaxPieceSegments = 4;

struct Counts {
  int32_t items, merges;
  int64_t partial_rows;

  __device__ Counts operator+(const Counts& other) const {
    return {items + other.items, merges + other.merges, partial_rows + other.partial_rows};
  }
};

struct Request {
  RequestRows rows;
  int32_t tiles, segments;

  // Pieces of at most so many segments each; of one where the tile is large.
  __device__ int32_t pieces(int32_t piece_segments) const {
    if (tiles != 1) return 1;
    return rows.rows > kSmallRows ? segments : (segments + piece_segments - 1) / piece_segments;
  }
  __device__ int64_t partial_rows(int32_t kv_heads, int32_t piece_segments) const {
    return pieces(piece_segments) > 1 ? int64_t{segments} * rows.rows * kv_heads : 0;
  }
};

__device__ Request request_at(const PlanParams& p, int32_t index) {
  if (index >= p.plan.requests) return {};
  Request request{request_rows(p.cu_seqlens_q, p.seq_lens, index, p.group, p.sliding_window), 0, 0};
  RequestRows& rows = request.rows;
  // Lengths that cannot be are no work: the bounds of the plan hold whatever the device was given.
  if (rows.rows <= 0 || rows.first_position < 0 || p.seq_lens[index] > p.max_seq_len) return {};
  request.tiles = rows.num_tiles(p.head_dim);
  request.segments = rows.end_segment() - rows.first_segment();
  return request;
}

// What all threads before this one have, and in `all` the sum over the block.
__device__ Counts scan(Counts own, Counts* all) {
  __shared__ Counts sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = own;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const Counts before = thread >= step ? sums[thread - step] : Counts{};
    __syncthreads();
    sums[thread] = before + sums[thread];
    __syncthreads();
  }
  const Counts result = thread > 0 ? sums[thread - 1] : Counts{};
  *all = sums[kThreads - 1];
  __syncthreads();
  return result;
}

__device__ void add_item(const AttentionPlan& plan, int32_t index, const AttentionItem& item) {
  if (index < plan.max_items) plan.items()[index] = item;
}

// Of a piece: as many segments as leave no more pieces than there are thread blocks.
__device__ int32_t piece_segments_of(const PlanParams& p) {
  int64_t segments = 0;
  for (int32_t begin = 0; begin < p.plan.requests; begin += kThreads) {
    const Request request = request_at(p, begin + static_cast<int32_t>(threadIdx.x));
    Counts all;
    scan({0, 0, request.tiles == 1 ? request.segments : 0}, &all);
    segments += all.partial_rows;
  }
  const int64_t share = (segments * p.kv_heads + p.thread_blocks - 1) / p.thread_blocks;
  return static_cast<int32_t>(min(max(share, int64_t{1}), kMaxPieceSegments));
}

__device__ void write_items(const PlanParams& p, int32_t index, const Request& request, const Counts& at,
                            int32_t pieces) {
  const auto partial_row = static_cast<int32_t>(at.partial_rows);
  if (pieces > 1) {
    const int32_t first = request.rows.first_segment(), end = first + request.segments,
                  most = (request.segments + pieces - 1) / pieces;
    for (int32_t i = 0; i < pieces; ++i) {
      const int32_t from = min(first + i * most, end);
      add_item(p.plan, at.items + i, {index, 0, from, min(most, end - from), partial_row});
    }
    p.plan.merges()[at.merges] = {index, 0, first, request.segments, partial_row};
    return;
  }
  // The last tiles see most: they come first.
  for (int32_t i = 0; i < request.tiles; ++i) {
    const int32_t tile = request.tiles - 1 - i;
    add_item(p.plan, at.items + i, {index, tile * request.rows.tile_rows(p.head_dim), kAllSegments, 0, 0});
  }
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const PlanParams p) {
  const int32_t piece_segments = piece_segments_of(p);
  Counts done{};
  int64_t partial_rows = 0;
  for (int32_t begin = 0; begin < p.plan.requests; begin += kThreads) {
    const int32_t index = begin + static_cast<int32_t>(threadIdx.x);
    const Request request = request_at(p, index);
    // First where each would have its partial results if all before it split; then who does.
    Counts all;
    const int64_t need = request.partial_rows(p.kv_heads, piece_segments),
                  at = partial_rows + scan({0, 0, need}, &all).partial_rows;
    partial_rows += all.partial_rows;
    const bool is_split = need > 0 && at + need <= p.partial_rows;
    const int32_t pieces = is_split ? request.pieces(piece_segments) : 1;
    const Counts own{is_split ? pieces : request.tiles, is_split ? 1 : 0, 0};
    Counts before = done + scan(own, &all);
    before.partial_rows = at;
    done = done + all;
    if (request.tiles > 0) write_items(p, index, request, before, pieces);
  }
  if (threadIdx.x > 0) return;
  p.plan.num_items() = min(done.items, p.plan.max_items);
  p.plan.num_merges() = done.merges;
  p.plan.num_taken() = 0;
  p.plan.stamp(p.group, p.head_dim, p.kv_heads, p.sliding_window);
}

}  // namespace

void plan_attention(const PlanParams& params, cudaStream_t stream) {
  PlanParams sized = params;
  sized.thread_blocks = attention_thread_blocks(params.head_dim);
  launch("plan_attention", plan_kernel, {1, kThreads}, stream, sized);
}

}  // namespace splitserve::cuda
