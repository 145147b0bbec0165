// Attention within whole sequences in float16; a file of its own, so that the types compile side by side.
#include "cuda/kernels.h"
#include "cuda/whole_half.cuh"

namespace splitserve::cuda {

void whole_attention_float16(const AttentionParams& params, cudaStream_t stream) {
  run_whole<Float16>(params, stream);
}

}  // namespace splitserve::cuda
