// Paged attention in bfloat16 over a cache of codes; a file of its own, so that the forms compile side by
// side.
#include "cuda/attention_codes.cuh"
#include "cuda/attention_half.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void paged_attention_codes(const AttentionParams& params, cudaStream_t stream) {
  run_attention<BFloat16, CodedCache>(params, stream);
}

}  // namespace splitserve::cuda
