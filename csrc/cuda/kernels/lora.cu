// Adapters' deltas: a thread block multiplies one row with its adapter's first matrix, others with parts of
// the second. Rows without an adapter end at once.
#include "common/lora.h"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 256;

// inner[row] = scale * x[row] . a. Threads share depth out, as many parts as fit with one thread per output
// each; their sums are added in order, so that bits depend on depth and rank alone.
template <typename T>
__global__ void __launch_bounds__(kThreads) shrink_row(LoraParams p) {
  __shared__ float sums[kThreads];
  const int64_t row = blockIdx.x;
  const int32_t slot = p.slots[row];
  if (slot < 0 || slot >= p.adapters) return;
  const int rank = static_cast<int>(p.rank), parts = kThreads / rank;
  const int column = static_cast<int>(threadIdx.x) % rank, part = static_cast<int>(threadIdx.x) / rank;
  if (part < parts) {
    const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
    const T* a = static_cast<const T*>(p.a) + slot * p.a_stride + column;
    float sum = 0.0f;
    for (int64_t k = part; k < p.depth; k += parts) sum = fmaf(to_float(x[k]), to_float(a[k * p.rank]), sum);
    sums[threadIdx.x] = sum;
  }
  __syncthreads();
  if (part > 0) return;
  float sum = sums[column];
  for (int i = 1; i < parts; ++i) sum += sums[i * rank + column];
  p.inner[row * p.rank + column] = sum * p.scales[slot];
}

// out[row] += inner[row] . b, one output per thread.
template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads) expand_row(LoraParams p, int64_t blocks_per_row) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t col = blockIdx.x % blocks_per_row * kThreads + threadIdx.x;
  const int32_t slot = p.slots[row];
  if (slot < 0 || slot >= p.adapters || col >= p.cols) return;
  const int32_t rank = p.ranks[slot];
  if (rank <= 0 || rank > p.rank) return;
  const float* inner = p.inner + row * p.rank;
  const T* b = static_cast<const T*>(p.b) + slot * p.b_stride;
  b += col / kLoraCols * p.rank * kLoraCols + col % kLoraCols;
  float sum = 0.0f;
  for (int32_t j = 0; j < rank; ++j) sum = fmaf(inner[j], to_float(b[j * kLoraCols]), sum);
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride + col;
  *out = to<Out>(to_float(*out) + sum);
}

}  // namespace

void lora(const LoraParams& p, cudaStream_t stream) {
  const int64_t blocks_per_row = ceil_div(p.cols, kThreads);
  with_type(p.dtype, false, [&]<typename T, bool>() {
    launch("lora", shrink_row<T>, {p.rows, dim3(kThreads)}, stream, p);
    auto* expand = p.out_dtype == p.dtype ? expand_row<T, T> : expand_row<T, float>;
    launch("lora", expand, {p.rows * blocks_per_row, dim3(kThreads)}, stream, p, blocks_per_row);
  });
}

}  // namespace splitserve::cuda
