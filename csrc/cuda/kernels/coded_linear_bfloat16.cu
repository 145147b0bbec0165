// Products of bfloat16 with weights of codes.
#include "cuda/coded_linear.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void coded_linear_bfloat16(const CodedLinearParams& p, cudaStream_t stream) {
  run_codes<BFloat16>(p, stream);
}

}  // namespace splitserve::cuda
