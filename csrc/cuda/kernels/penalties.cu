// Repetition, frequency and presence penalties, applied to logits in place.
//
// As on the CPU, tokens are counted anew from each history, so there is no state to keep. A thread block
// counts those of a part of the vocabulary in shared memory; each block of a row reads the whole history.
#include <algorithm>

#include "cuda/intrinsics.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSlice = 24576;  // counts of a block: 96 KB
// Set for a token that was seen; the bits below count it among output tokens.
constexpr uint32_t kIsSeen = 1u << 31;

__device__ void count(const PenaltyParams& p, int i, int begin, int size, uint32_t* counts) {
  const int32_t* history = p.token_ids + p.history_rows[i] * p.token_ids_stride;
  const int prompt_len = p.prompt_lens[i], total_len = min(p.total_lens[i], p.max_len);
  for (int j = static_cast<int>(threadIdx.x); j < total_len; j += kThreads) {
    // Ids below 0 mark tokens whose value is not known yet.
    const int64_t place = int64_t{history[j]} - begin;
    if (place < 0 || place >= size) continue;
    atomicOr(&counts[place], kIsSeen);
    if (j >= prompt_len) atomicAdd(&counts[place], 1u);
  }
}

__device__ float penalised(float logit, uint32_t num_outputs, const PenaltyParams& p, int i) {
  logit = logit > 0.0f ? logit / p.repetition[i] : logit * p.repetition[i];
  if (num_outputs == 0) return logit;
  return (logit - p.frequency[i] * static_cast<float>(num_outputs)) - p.presence[i];
}

__global__ void __launch_bounds__(kThreads)
    penalties_kernel(const __grid_constant__ PenaltyParams p, int slices) {
  auto* counts = reinterpret_cast<uint32_t*>(dynamic_shared());
  const int i = static_cast<int>(blockIdx.x) / slices, begin = static_cast<int>(blockIdx.x) % slices * kSlice;
  const int size = min(kSlice, p.vocab - begin), thread = static_cast<int>(threadIdx.x);
  if (p.rows[i] < 0 || p.rows[i] >= p.all_rows || p.history_rows[i] < 0 || p.history_rows[i] >= p.histories)
    return;
  for (int j = thread; j < size; j += kThreads) counts[j] = 0;
  __syncthreads();
  count(p, i, begin, size, counts);
  __syncthreads();
  float* logits = p.logits + p.rows[i] * p.logits_stride + begin;
  for (int j = thread; j < size; j += kThreads) {
    if (counts[j] != 0) logits[j] = penalised(logits[j], counts[j] & ~kIsSeen, p, i);
  }
}

}  // namespace

void apply_penalties(const PenaltyParams& params, cudaStream_t stream) {
  const auto slices = static_cast<int>(ceil_div(params.vocab, kSlice));
  const int64_t shared_bytes = 4 * std::min<int64_t>(params.vocab, kSlice);
  launch("apply_penalties", penalties_kernel, {int64_t{params.count} * slices, kThreads, shared_bytes},
         stream, params, slices);
}

}  // namespace splitserve::cuda
