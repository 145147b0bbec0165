// Attention within whole sequences in bfloat16; a file of its own, so that the types compile side by side.
#include "cuda/kernels.h"
#include "cuda/whole_half.cuh"

namespace splitserve::cuda {

void whole_attention_bfloat16(const AttentionParams& params, cudaStream_t stream) {
  run_whole<BFloat16>(params, stream);
}

}  // namespace splitserve::cuda
