// Log-probabilities of given tokens and of the most likely ones, from raw logits.
#include "cuda/kernels.h"
#include "cuda/vocab_cut.cuh"
#include "cuda/vocab_launch.h"

namespace splitserve::cuda {
namespace {

// log(sum of exp(logit - max)), from a sum of integers: the same for any number of threads.
__device__ float log_sum(const VocabRow& row) {
  uint64_t mass = 0;
  row.for_each([&](float logit, int) { mass += mass_of(logit - row.highest()); });
  return log_portable(static_cast<float>(row.sum(mass)) * (1.0f / kUnitMass));
}

// 1 + number of tokens preferred to this one.
__device__ int32_t rank_of(const VocabRow& row, int token_id) {
  const uint64_t own = preference_key(row.logit_of(token_id), token_id);
  uint64_t before = 0;
  row.for_each([&](float logit, int other) { before += preference_key(logit, other) > own ? 1 : 0; });
  return static_cast<int32_t>(row.sum(before)) + 1;
}

// Lists the preference keys of this block's kept tokens.
__device__ void list_kept(const VocabRow& row, const VocabFilter& filter) {
  VocabMemory& shared = VocabRow::memory();
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  row.for_each([&](float logit, int token_id) {
    if (!filter.keeps(logit, token_id)) return;
    shared.weights[atomicAdd(&shared.num_listed, 1)] = preference_key(logit, token_id);
  });
  cluster_sync();
}

// Writes the `top` likeliest tokens, each at the place that the number of more preferred ones says.
__device__ void write_listed(const LogprobsParams& p, int i, float max, float log_total) {
  VocabMemory& shared = VocabRow::memory();
  uint64_t* all = shared.weights + kMaxTopLogprobs;
  int total = 0;
  for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
    const int count = *in_block(&shared.num_listed, rank);
    const uint64_t* listed = in_block(shared.weights, rank);
    for (int j = static_cast<int>(threadIdx.x); j < count; j += kVocabThreads) all[total + j] = listed[j];
    total += count;
  }
  __syncthreads();
  int32_t* ids = p.out_ids + i * p.ids_stride + 1;
  float* logprobs = p.out_logprobs + i * p.logprobs_stride + 1;
  for (int j = static_cast<int>(threadIdx.x); j < p.top; j += kVocabThreads) {
    int place = j;
    if (j < total) {
      place = 0;
      for (int other = 0; other < total; ++other) place += all[other] > all[j] ? 1 : 0;
    }
    const float logit = j < total ? from_order_key(static_cast<uint32_t>(all[j] >> 32)) : -INFINITY;
    ids[place] = j < total ? static_cast<int32_t>(~static_cast<uint32_t>(all[j])) : -1;
    logprobs[place] = j < total ? (logit - max) - log_total : -INFINITY;
  }
}

__device__ void write_top(const LogprobsParams& p, int i, const VocabRow& row, float log_total) {
  VocabFilter filter = keep_all(row.highest(), 1.0f);
  if (p.top < p.vocab)
    filter.cut = CutFinder(row, filter, false).find([&](uint64_t) { return static_cast<uint64_t>(p.top); });
  list_kept(row, filter);
  if (cluster_rank() == 0) write_listed(p, i, row.highest(), log_total);
  // A block must not end while another reads its list.
  cluster_sync();
}

// No order among these logits: ids -1, NaN logprobs, rank 0.
__device__ void write_invalid(const LogprobsParams& p, int i) {
  if (cluster_rank() != 0) return;
  for (int j = static_cast<int>(threadIdx.x); j <= p.top; j += kVocabThreads) {
    p.out_ids[i * p.ids_stride + j] = j == 0 ? p.token_ids[i] : -1;
    p.out_logprobs[i * p.logprobs_stride + j] = NAN;
  }
  if (threadIdx.x == 0) p.out_ranks[i] = 0;
}

__global__ void __launch_bounds__(kVocabThreads, 2)
    top_logprobs_kernel(const __grid_constant__ LogprobsParams p, bool is_cached) {
  const int i = static_cast<int>(blockIdx.x / cluster_size()), token_id = p.token_ids[i];
  if (p.rows[i] < 0 || p.rows[i] >= p.all_rows || token_id < 0 || token_id >= p.vocab)
    return write_invalid(p, i);
  VocabRow row(p.logits + p.rows[i] * p.logits_stride, p.vocab, is_cached);
  row.load();
  if (!row.has_finite_highest()) return write_invalid(p, i);
  const float log_total = log_sum(row);
  const int32_t rank = rank_of(row, token_id);
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    p.out_ids[i * p.ids_stride] = token_id;
    p.out_logprobs[i * p.logprobs_stride] = (row.logit_of(token_id) - row.highest()) - log_total;
    p.out_ranks[i] = rank;
  }
  if (p.top > 0) write_top(p, i, row, log_total);
}

// The same subtraction in the same order as above, so both give a token the same bits.
__global__ void __launch_bounds__(kVocabThreads, 2)
    token_logprobs_kernel(const __grid_constant__ TokenLogprobsParams p, bool is_cached) {
  const int i = static_cast<int>(blockIdx.x / cluster_size());
  const int begin = max(p.cu_tokens[i], 0), end = min(p.cu_tokens[i + 1], p.all_tokens);
  const bool is_row = p.rows[i] >= 0 && p.rows[i] < p.all_rows;
  VocabRow row(p.logits + (is_row ? p.rows[i] : 0) * p.logits_stride, p.vocab, is_cached);
  row.load();
  const bool is_valid = is_row && row.has_finite_highest();
  const float log_total = is_valid ? log_sum(row) : 0.0f;
  if (cluster_rank() != 0) return;
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += kVocabThreads) {
    const int token_id = p.token_ids[j];
    const bool is_token = is_valid && token_id >= 0 && token_id < p.vocab;
    p.out[j] = is_token ? (row.logit_of(token_id) - row.highest()) - log_total : NAN;
  }
}

}  // namespace

void top_logprobs(const LogprobsParams& params, cudaStream_t stream) {
  const VocabLaunch launched = vocab_launch(params.count, params.vocab);
  launch("top_logprobs", top_logprobs_kernel, launched.shape, stream, params, launched.is_cached);
}

void token_logprobs(const TokenLogprobsParams& params, cudaStream_t stream) {
  const VocabLaunch launched = vocab_launch(params.count, params.vocab);
  launch("token_logprobs", token_logprobs_kernel, launched.shape, stream, params, launched.is_cached);
}

}  // namespace splitserve::cuda
