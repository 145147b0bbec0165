// Attention over latents in single precision: one warp per query row.
#include "cuda/attention_float.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxWidth = kMaxLatent + kMaxRotary;

__global__ void __launch_bounds__(kWarps * 32)
    latent_float_kernel(const __grid_constant__ LatentAttentionParams params) {
  __shared__ __align__(16) float queries[kWarps][kMaxWidth];
  const AttentionParams& p = params.base;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp;
  if (row >= int64_t{p.tokens} * p.heads) return;
  const int token = static_cast<int>(row / p.heads), head = static_cast<int>(row % p.heads);
  const float* latent = static_cast<const float*>(p.q) + token * p.q_token_stride + head * p.q_head_stride;
  const float* rotary = static_cast<const float*>(params.q_rotary) + token * params.rotary_token_stride +
                        head * params.rotary_head_stride;
  for (int d = lane; d < p.head_dim; d += 32) queries[warp][d] = latent[d];
  for (int d = lane; d < params.rotary; d += 32) queries[warp][p.head_dim + d] = rotary[d];
  __syncwarp();
  const int request = request_of(p, token);
  const RequestRows rows = CausalView::rows_of(p, request, 1);
  const int position = rows.position(token - rows.first_token);
  FloatRow<CausalView, kMaxLatent / 32> result(p, rows, request, head, queries[warp], params.width());
  result.run(0, position + 1);
  result.write(static_cast<float*>(p.out) + token * p.out_token_stride + head * p.out_head_stride, head);
}

}  // namespace

void latent_attention_float(const LatentAttentionParams& p, cudaStream_t stream) {
  const LaunchShape shape{ceil_div(int64_t{p.base.tokens} * p.base.heads, kWarps), kWarps * 32};
  launch("latent_attention", latent_float_kernel, shape, stream, p);
}

}  // namespace splitserve::cuda
