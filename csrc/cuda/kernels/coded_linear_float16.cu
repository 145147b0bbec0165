// Products of float16 with weights of codes.
#include "cuda/coded_linear.cuh"
#include "cuda/kernels.h"

namespace splitserve::cuda {

void coded_linear_float16(const CodedLinearParams& p, cudaStream_t stream) {
  if (takes_warpgroups(p)) return coded_wide_float16(p, stream);
  with_product<Float16>(p.weight, [&]<typename Product>() { run_coded_linear<Product>(p, stream); });
}

}  // namespace splitserve::cuda
