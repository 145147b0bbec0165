// Products of float16 with weights of codes by warpgroups.
#include "cuda/coded_wide.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void coded_wide_float16(const CodedLinearParams& p, cudaStream_t stream) {
  with_product<Float16>(p.weight, [&]<typename Product>() { run_coded_wide<Product>(p, stream); });
}

}  // namespace splitserve::cuda
