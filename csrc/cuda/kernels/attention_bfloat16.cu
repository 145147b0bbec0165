// Paged attention in bfloat16; a file of its own, so that the types compile side by side.
#include "cuda/attention_half.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void paged_attention_bfloat16(const AttentionParams& params, cudaStream_t stream) {
  run_attention<BFloat16>(params, stream);
}

}  // namespace splitserve::cuda
