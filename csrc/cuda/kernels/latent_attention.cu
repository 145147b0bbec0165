// Attention over latents in half precision: a thread block takes one tile of rows.
#include "cuda/kernels.h"
#include "cuda/latent_tile.cuh"
#include "cuda/whole_half.cuh"

namespace splitserve::cuda {
namespace {

template <typename Half>
__global__ void __launch_bounds__(kAttentionThreads)
    latent_kernel(const __grid_constant__ LatentAttentionParams params) {
  __shared__ AttentionPiece piece;
  const AttentionParams& p = params.base;
  const int request = sequence_of<kLatentRows>(p, blockIdx.x);
  if (request < 0) return;
  const auto first_row = static_cast<int>(blockIdx.x - first_tile<kLatentRows>(p, request)) * kLatentRows;
  const RequestRows rows = CausalView::rows_of(p, request, p.group);
  if (first_row < 0 || first_row >= rows.rows || rows.first_position < 0) return;
  if (threadIdx.x == 0) {
    piece.item = {request, first_row, kAllSegments, 0, 0};
    piece.rows = rows;
    piece.kv_head = 0;
    piece.set_positions<CausalView>(kLatentRows);
  }
  __syncthreads();
  LatentTile<Half>(params, piece, *reinterpret_cast<LatentMemory*>(dynamic_shared())).run();
}

template <typename Half>
void run_latents(const LatentAttentionParams& params, cudaStream_t stream) {
  const AttentionParams& p = params.base;
  const int64_t tiles = int64_t{p.tokens} * p.group / kLatentRows + p.requests;
  launch("latent_attention", latent_kernel<Half>, {tiles, kAttentionThreads, sizeof(LatentMemory)}, stream,
         params);
}

}  // namespace

void latent_attention_bfloat16(const LatentAttentionParams& params, cudaStream_t stream) {
  run_latents<BFloat16>(params, stream);
}

void latent_attention_float16(const LatentAttentionParams& params, cudaStream_t stream) {
  run_latents<Float16>(params, stream);
}

int64_t latent_shared_bytes() { return kStaticSharedBytes + sizeof(LatentMemory); }

}  // namespace splitserve::cuda
