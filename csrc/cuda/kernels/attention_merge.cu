// Merges the partial results of the requests that a plan has split, segment by segment in order.
#include <algorithm>

#include "common/half.h"
#include "common/softmax_state.h"
#include "cuda/attention.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxPairs = 4;  // of dimensions that a lane holds: heads of up to 256

// One output row by one warp.
template <typename Half>
__device__ void merge_row(const AttentionParams& p, const float* part, int64_t segment_stride, int segments,
                          uint16_t* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  SoftmaxState total;
  float2 values[kMaxPairs] = {};
#pragma unroll 2
  for (int segment = 0; segment < segments; ++segment, part += segment_stride) {
    const float2 state = *reinterpret_cast<const float2*>(part);
    const MergeFactors factors = merge_into(&total, {state.x, state.y});
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
      const int d = (i * 32 + lane) * 2;
      if (d >= p.head_dim) continue;
      const float2 own = *reinterpret_cast<const float2*>(part + kPartialHeader + d);
      values[i] = {merged_value(values[i].x, own.x, factors), merged_value(values[i].y, own.y, factors)};
    }
  }
  const float inverse = 1.0f / total.sum;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int d = (i * 32 + lane) * 2;
    if (d >= p.head_dim) continue;
    *reinterpret_cast<uint32_t*>(out + d) =
        pack_pair<Half>(multiply(values[i].x, inverse), multiply(values[i].y, inverse));
  }
}

template <typename Half>
__global__ void __launch_bounds__(kWarps * 32) merge_kernel(const __grid_constant__ AttentionParams p) {
  // The attention kernel before this one has ended: its counter is made ready for the next layer's.
  if (blockIdx.x == 0 && threadIdx.x == 0) p.plan.next_work() = 0;
  const int warp = static_cast<int>(threadIdx.x) / 32, total = p.plan.num_merges() * p.kv_heads;
  for (int work = static_cast<int>(blockIdx.x); work < total; work += static_cast<int>(gridDim.x)) {
    const AttentionItem merge = p.plan.merges()[work / p.kv_heads];
    const int kv_head = work % p.kv_heads;
    const RequestRows rows =
        request_rows(p.cu_seqlens_q, p.seq_lens, merge.request, p.group, p.sliding_window);
    const int64_t stride = partial_stride(p.head_dim);
    for (int row = warp; row < rows.rows; row += kWarps) {
      const float* part = p.partials + (merge.partial_row + int64_t{kv_head} * rows.rows + row) * stride;
      auto* out = static_cast<uint16_t*>(p.out) + (rows.first_token + row / p.group) * p.out_token_stride +
                  (kv_head * p.group + row % p.group) * p.out_head_stride;
      merge_row<Half>(p, part, int64_t{p.kv_heads} * rows.rows * stride,
                      rows.end_segment() - rows.first_segment(), out);
    }
  }
}

}  // namespace

void merge_attention(const AttentionParams& p, cudaStream_t stream) {
  const int64_t most = int64_t{8} * device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t blocks = std::min(int64_t{p.requests} * p.kv_heads, most);
  const LaunchShape shape{blocks, kWarps * 32};
  if (p.dtype == DType::kBFloat16) {
    launch("merge_attention", merge_kernel<BFloat16>, shape, stream, p);
  } else {
    launch("merge_attention", merge_kernel<Float16>, shape, stream, p);
  }
}

}  // namespace splitserve::cuda
