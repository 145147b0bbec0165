// Divides the query rows of a step into pieces of work: whole tiles, and single segments of tiles that split.
//
// A request whose rows fill one tile at most, decode steps above all, splits where it has several segments
// and the partial results find room. Whether it does changes no bit of the output. One thread block does all:
// a plan serves every layer of a step.
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 256;

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

  __device__ bool is_split_candidate() const { return tiles == 1 && segments > 1; }
  __device__ int64_t partial_rows(int32_t kv_heads) const {
    return is_split_candidate() ? int64_t{segments} * rows.rows * kv_heads : 0;
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

__device__ void write_items(const PlanParams& p, int32_t index, const Request& request, const Counts& at,
                            bool is_split) {
  const auto partial_row = static_cast<int32_t>(at.partial_rows);
  const int32_t first = request.rows.first_segment();
  if (is_split) {
    for (int32_t i = 0; i < request.segments; ++i) {
      add_item(p.plan, at.items + i, {index, 0, first + i, partial_row});
    }
    p.plan.merges()[at.merges] = {index, 0, first, partial_row};
    return;
  }
  // The last tiles see most: they come first.
  for (int32_t i = 0; i < request.tiles; ++i) {
    const int32_t tile = request.tiles - 1 - i;
    add_item(p.plan, at.items + i, {index, tile * request.rows.tile_rows(p.head_dim), kAllSegments, 0});
  }
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const PlanParams p) {
  Counts done{};
  int64_t partial_rows = 0;
  for (int32_t begin = 0; begin < p.plan.requests; begin += kThreads) {
    const int32_t index = begin + static_cast<int32_t>(threadIdx.x);
    const Request request = request_at(p, index);
    // First where each would have its partial results if all before it split; then who does.
    Counts all;
    const int64_t need = request.partial_rows(p.kv_heads),
                  at = partial_rows + scan({0, 0, need}, &all).partial_rows;
    partial_rows += all.partial_rows;
    const bool is_split = need > 0 && at + need <= p.partial_rows;
    const Counts own{is_split ? request.segments : request.tiles, is_split ? 1 : 0, 0};
    Counts before = done + scan(own, &all);
    before.partial_rows = at;
    done = done + all;
    if (request.tiles > 0) write_items(p, index, request, before, is_split);
  }
  if (threadIdx.x > 0) return;
  p.plan.num_items() = min(done.items, p.plan.max_items);
  p.plan.num_merges() = done.merges;
  p.plan.num_taken() = 0;
  p.plan.stamp(p.group, p.head_dim, p.kv_heads, p.sliding_window);
}

}  // namespace

void plan_attention(const PlanParams& params, cudaStream_t stream) {
  launch("plan_attention", plan_kernel, {1, kThreads}, stream, params);
}

}  // namespace splitserve::cuda
