// Merges the partial results of the requests that a plan has split, segment by segment in order.
#include <algorithm>

#include "cuda/attention_sink.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kWarps = 4;
// Segments whose parts are on their way together: a merge waits for the one before it, a load need not.
constexpr int kAhead = 16;

// What a lane has of a partial row: pairs of dimensions, 2 for heads of up to 128, 4 for those of up to 256.
template <int kPairs>
struct Part {
  SoftmaxState state;
  float2 values[kPairs];
};

__device__ int first_dim(int pair) { return (pair * 32 + static_cast<int>(threadIdx.x) % 32) * 2; }

template <int kPairs>
__device__ void load_part(const float* row, int head_dim, Part<kPairs>* part) {
  const float2 state = *reinterpret_cast<const float2*>(row);
  part->state = SoftmaxState{state.x, state.y};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (first_dim(i) >= head_dim) continue;
    part->values[i] = *reinterpret_cast<const float2*>(row + kPartialHeader + first_dim(i));
  }
}

// One output row by one warp.
template <typename Half, int kPairs>
__device__ void merge_row(const AttentionParams& p, const float* row, int64_t segment_stride, int segments,
                          int head, uint16_t* out) {
  SoftmaxState total;
  float2 values[kPairs] = {};
  for (int first = 0; first < segments; first += kAhead) {
    Part<kPairs> parts[kAhead] = {};
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + j < segments) load_part(row + (first + j) * segment_stride, p.head_dim, &parts[j]);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + j >= segments) continue;
      const MergeFactors factors = merge_into(&total, parts[j].state);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 own = parts[j].values[i];
        values[i] = {merged_value(values[i].x, own.x, factors), merged_value(values[i].y, own.y, factors)};
      }
    }
  }
  const float factor = final_factor(total, sink_of<Half>(p, head));
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (first_dim(i) >= p.head_dim) continue;
    *reinterpret_cast<uint32_t*>(out + first_dim(i)) =
        pack_pair<Half>(multiply(values[i].x, factor), multiply(values[i].y, factor));
  }
}

template <typename Half, int kPairs>
__global__ void __launch_bounds__(kWarps * 32) merge_kernel(const __grid_constant__ AttentionParams p) {
  // The attention kernel before this one has ended: its counter is made ready for the next layer's.
  if (blockIdx.x == 0 && threadIdx.x == 0) p.plan.num_taken() = 0;
  const int warp = static_cast<int>(threadIdx.x) / 32, total = p.plan.num_merges() * p.kv_heads;
  for (int work = static_cast<int>(blockIdx.x); work < total; work += static_cast<int>(gridDim.x)) {
    const AttentionItem merge = p.plan.merges()[work / p.kv_heads];
    const int kv_head = work % p.kv_heads;
    const RequestRows rows =
        request_rows(p.cu_seqlens_q, p.seq_lens, merge.request, p.group, p.sliding_window);
    const int64_t stride = partial_stride(p.head_dim);
    for (int row = warp; row < rows.rows; row += kWarps) {
      const float* part = p.partials + (merge.partial_row + int64_t{kv_head} * rows.rows + row) * stride;
      const int head = kv_head * p.group + row % p.group;
      auto* out = static_cast<uint16_t*>(p.out) + (rows.first_token + row / p.group) * p.out_token_stride +
                  head * p.out_head_stride;
      merge_row<Half, kPairs>(p, part, int64_t{p.kv_heads} * rows.rows * stride,
                              rows.end_segment() - rows.first_segment(), head, out);
    }
  }
}

template <typename Half>
void launch_merge(const AttentionParams& p, const LaunchShape& shape, cudaStream_t stream) {
  auto* kernel = p.head_dim <= 128 ? merge_kernel<Half, 2> : merge_kernel<Half, 4>;
  launch("merge_attention", kernel, shape, stream, p);
}

}  // namespace

void merge_attention(const AttentionParams& p, cudaStream_t stream) {
  const int64_t most = int64_t{8} * device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t blocks = std::min(int64_t{p.requests} * p.kv_heads, most);
  const LaunchShape shape{blocks, kWarps * 32};
  if (p.dtype == DType::kBFloat16) {
    launch_merge<BFloat16>(p, shape, stream);
  } else {
    launch_merge<Float16>(p, shape, stream);
  }
}

}  // namespace splitserve::cuda
