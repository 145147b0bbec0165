// Products of float16 with weights of codes.
#include "cuda/coded_linear.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void coded_linear_float16(const CodedLinearParams& p, cudaStream_t stream) { run_codes<Float16>(p, stream); }

}  // namespace splitserve::cuda
