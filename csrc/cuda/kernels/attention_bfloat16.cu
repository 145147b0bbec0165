// Paged attention in bfloat16; a file of its own, so that the types compile side by side.
#include "cuda/attention_half.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void paged_attention_bfloat16(const AttentionParams& params, cudaStream_t stream) {
  run_attention<BFloat16, PlainCache>(params, stream);
}

int64_t attention_shared_bytes(int head_dim) {
  return kStaticSharedBytes +
         with_dim(head_dim, [&]<int kDim>() { return Tiles<BFloat16, PlainCache, kDim>::shared_bytes(); });
}

int64_t attention_thread_blocks(int head_dim) {
  return with_dim(head_dim, [&]<int kDim>() {
    return resident_blocks<kDim>(Tiles<BFloat16, PlainCache, kDim>::shared_bytes());
  });
}

}  // namespace splitserve::cuda
