// Adds to single logits what requests ask for; -inf forbids a token. A thread block has a row.
#include "common/logit_rules.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 128;

// The edits of this row that forbid a token, or the others. Among either no order matters: of the others no
// two are of one token, and those who forbid the same one store the same.
template <bool kForbids>
__device__ void apply(const EditLogitsParams& p, float* row, int begin, int end) {
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += kThreads) {
    const int token_id = p.token_ids[j];
    const float value = p.values[j];
    if (token_id < 0 || token_id >= p.vocab || (value == -INFINITY) != kForbids) continue;
    row[token_id] = edited(row[token_id], value);
  }
}

__global__ void __launch_bounds__(kThreads) edit_kernel(const __grid_constant__ EditLogitsParams p) {
  const int64_t i = blockIdx.x;
  if (p.rows[i] < 0 || p.rows[i] >= p.all_rows) return;
  const int begin = max(p.cu_edits[i], 0);
  const int end = static_cast<int>(min(int64_t{p.cu_edits[i + 1]}, p.all_edits));
  float* row = p.logits + p.rows[i] * p.logits_stride;
  apply<false>(p, row, begin, end);
  // What is forbidden stays so, whatever was added to it.
  __syncthreads();
  apply<true>(p, row, begin, end);
}

}  // namespace

void edit_logits(const EditLogitsParams& params, cudaStream_t stream) {
  launch("edit_logits", edit_kernel, {params.count, kThreads}, stream, params);
}

}  // namespace splitserve::cuda
