// Log-probabilities of given tokens and of the most likely ones, from raw logits.
#include "cpu/logprobs.h"

#include "cpu/parallel.h"
#include "cpu/selection.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// log(sum of exp(logit - max)); four running sums in a fixed order.
float log_sum(const Row& row, float max) {
  Vec sums[4] = {};
  for (int64_t i = 0, turn = 0; i < row.size; i += kLanes, ++turn) {
    sums[turn & 3] = sums[turn & 3] + exp(row(i) - max);
  }
  return log(sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3])));
}

// 1 + number of tokens preferred to this one.
int32_t rank_of(const Row& row, Candidate token) {
  IntVec before{}, ids = lane_ids();
  for (int64_t i = 0; i < row.size; i += kLanes, ids += kLanes) {
    const Vec logits = row(i), limit = broadcast(token.logit);
    // A set lane of a comparison is -1. Lanes past the end are -inf with higher ids: never before.
    before -= (logits > limit) | ((logits == limit) & (ids < token.token_id));
  }
  int32_t rank = 1;
  for (int lane = 0; lane < kLanes; ++lane) rank += before[lane];
  return rank;
}

// The `top` first tokens in preference order, sorted; returns how many there are.
int64_t find_top(const Row& row, float max, int64_t top, Candidate* found) {
  Filter filter = keep_all(max, 1.0f);
  if (top < row.size) {
    const double target = static_cast<double>(top);
    filter.cut = find_cut<UnitWeight>(row, filter, [target](double) { return target; });
  }
  int64_t count = 0;
  for_each_kept<UnitWeight>(row, filter, [&](int32_t token_id, float logit, int32_t, float) {
    if (count < top) found[count++] = {logit, token_id};
  });
  sort_candidates(found, count);
  return count;
}

// A row with NaN has no order: ids -1, NaN logprobs, rank 0.
void write_invalid(const LogprobsParams& p, int64_t i) {
  for (int64_t j = 0; j <= p.top; ++j) {
    p.out_ids[i * p.ids_stride + j] = j == 0 ? p.token_ids[i] : -1;
    p.out_logprobs[i * p.logprobs_stride + j] = __builtin_nanf("");
  }
  p.out_ranks[i] = 0;
}

void write_row(const LogprobsParams& p, int64_t i, Candidate* found) {
  const Row row{p.logits + p.rows[i] * p.logits_stride, p.vocab};
  const float max = find_highest(row).logit;
  if (!(max - max == 0.0f)) return write_invalid(p, i);
  const float log_total = log_sum(row, max);
  int32_t* ids = p.out_ids + i * p.ids_stride;
  float* logprobs = p.out_logprobs + i * p.logprobs_stride;
  const Candidate token{row.logits[p.token_ids[i]], p.token_ids[i]};
  ids[0] = token.token_id;
  logprobs[0] = (token.logit - max) - log_total;
  p.out_ranks[i] = rank_of(row, token);
  if (p.top == 0) return;
  const int64_t count = find_top(row, max, p.top, found);
  for (int64_t j = 0; j < p.top; ++j) {
    ids[1 + j] = j < count ? found[j].token_id : -1;
    logprobs[1 + j] = j < count ? (found[j].logit - max) - log_total : -__builtin_inff();
  }
}

// The same subtraction in the same order as in write_row, so both give a token the same bits.
void write_tokens(const TokenLogprobsParams& p, int64_t i) {
  const Row row{p.logits + p.rows[i] * p.logits_stride, p.vocab};
  const float max = find_highest(row).logit;
  const bool is_finite = max - max == 0.0f;
  const float log_total = is_finite ? log_sum(row, max) : 0.0f;
  for (int64_t j = p.cu_tokens[i]; j < p.cu_tokens[i + 1]; ++j) {
    p.out[j] = is_finite ? (row.logits[p.token_ids[j]] - max) - log_total : __builtin_nanf("");
  }
}

}  // namespace

void top_logprobs(const LogprobsParams& params) {
  parallel_tasks(params.count, params.count * params.vocab, [&params](int64_t i) {
    auto* found =
        static_cast<Candidate*>(std::malloc(static_cast<size_t>(params.top + 1) * sizeof(Candidate)));
    write_row(params, i, found);
    std::free(found);
  });
}

void token_logprobs(const TokenLogprobsParams& params) {
  parallel_tasks(params.count, params.count * params.vocab,
                 [&params](int64_t i) { write_tokens(params, i); });
}

}  // namespace splitserve::SPLITSERVE_ISA
