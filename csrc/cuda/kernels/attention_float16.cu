// Paged attention in float16; a file of its own, so that the types compile side by side.
#include "cuda/attention_half.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void paged_attention_float16(const AttentionParams& params, cudaStream_t stream) {
  run_attention<Float16, PlainCache>(params, stream);
}

}  // namespace splitserve::cuda
