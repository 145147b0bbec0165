// Reduces the hidden states of each row's tokens, one token after the other, a thread per column: so chunks
// change no bit.
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 128;
// Tokens whose loads a thread has under way together.
constexpr int kInFlight = 8;

// NaN stays NaN.
__device__ inline float larger(float a, float b) { return a >= b || a != a ? a : b; }

template <typename T>
__global__ void __launch_bounds__(kThreads) pool_columns(PoolRowsParams p, int64_t blocks_per_run) {
  const int64_t run = blockIdx.x / blocks_per_run, row = p.rows[run];
  const int64_t column = blockIdx.x % blocks_per_run * kThreads + threadIdx.x;
  const int begin = p.ends[run], count = p.ends[run + 1] - begin, first = p.positions[run];
  if (column >= p.size || row < 0 || row >= p.num_rows || begin < 0 || begin + count > p.tokens) return;
  const T* states = static_cast<const T*>(p.states) + begin * p.states_stride + column;
  float* out = p.totals + row * p.totals_stride + column;
  float total = *out;
  for (int i = 0; i < count; i += kInFlight) {
    float next[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j)
      next[j] = i + j < count ? to_float(states[(i + j) * p.states_stride]) : 0.0f;
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (i + j >= count) continue;
      const int position = first + i + j;
      const float state = p.kind == Pool::kWeightedSum ? next[j] * static_cast<float>(position + 1) : next[j];
      const float joined = p.kind == Pool::kMax ? larger(total, state) : total + state;
      total = position == 0 ? state : joined;
    }
  }
  *out = total;
}

}  // namespace

void pool_rows(const PoolRowsParams& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.size, kThreads);
  with_type(p.dtype, false, [&]<typename T, bool kAligned>() {
    launch("pool_rows", pool_columns<T>, {p.runs * blocks, kThreads}, stream, p, blocks);
  });
}

}  // namespace splitserve::cuda
