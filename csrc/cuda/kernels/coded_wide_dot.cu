// Products of int8 with weights of int8 by warpgroups.
#include "cuda/coded_wide.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void coded_wide_dot(const CodedLinearParams& p, cudaStream_t stream) {
  run_coded_wide<DotProduct>(p, stream);
}

}  // namespace splitserve::cuda
