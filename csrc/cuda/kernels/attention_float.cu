// Attention in single precision, paged or of whole sequences: one warp per query row, for models and tests
// that ask for float32.
#include "cuda/attention_float.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxDim = 256;

template <typename View>
__global__ void __launch_bounds__(kWarps * 32) float_kernel(const __grid_constant__ AttentionParams p) {
  __shared__ __align__(16) float queries[kWarps][kMaxDim];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp;
  if (row >= int64_t{p.tokens} * p.heads) return;
  const int token = static_cast<int>(row / p.heads), head = static_cast<int>(row % p.heads);
  const float* q = static_cast<const float*>(p.q) + token * p.q_token_stride + head * p.q_head_stride;
  for (int d = lane; d < p.head_dim; d += 32) queries[warp][d] = q[d];
  __syncwarp();
  const int request = request_of(p, token);
  const RequestRows rows = View::rows_of(p, request, 1);
  const int position = rows.position(token - rows.first_token);
  FloatRow<View, kMaxDim / 32> result(p, rows, request, head, queries[warp], p.head_dim);
  result.run(rows.window_start(position), View::last_seen(rows, position) + 1);
  result.write(static_cast<float*>(p.out) + token * p.out_token_stride + head * p.out_head_stride, head);
}

template <typename View>
void run_floats(const char* what, const AttentionParams& p, cudaStream_t stream) {
  const LaunchShape shape{ceil_div(int64_t{p.tokens} * p.heads, kWarps), kWarps * 32};
  launch(what, float_kernel<View>, shape, stream, p);
}

}  // namespace

void paged_attention_float(const AttentionParams& p, cudaStream_t stream) {
  run_floats<CausalView>("paged_attention", p, stream);
}

void whole_attention_float(const AttentionParams& p, cudaStream_t stream) {
  run_floats<WholeView>("whole_attention", p, stream);
}

}  // namespace splitserve::cuda
