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

// The first `top` tokens in preference order of those it is shown, in memory for some more.
class TopTokens {
 public:
  static int64_t capacity(int64_t top) { return 2 * top + 4 * kLanes; }

  TopTokens(int64_t top, Candidate* tokens)
      : top_(top), tokens_(tokens), least_(top > 0 ? -__builtin_inff() : __builtin_nanf("")) {}

  // Logits from id `first` on; ids must come in increasing order.
  SPLITSERVE_INLINE void show(const Row& row, int64_t first, Vec logits) {
    const uint32_t wanted = lane_bits(logits >= broadcast(least_));
    if (wanted != 0) add(row, first, wanted);
  }

  // Sorts them; returns how many there are.
  int64_t finish() {
    sort_candidates(tokens_, count_);
    return count_ < top_ ? count_ : top_;
  }

  const Candidate& operator[](int64_t i) const { return tokens_[i]; }

 private:
  void add(const Row& row, int64_t first, uint32_t wanted) {
    for (; wanted != 0; wanted &= wanted - 1) {
      const int64_t token_id = first + __builtin_ctz(wanted);
      if (token_id < row.size) tokens_[count_++] = {row.logits[token_id], static_cast<int32_t>(token_id)};
    }
    if (count_ + kLanes <= capacity(top_)) return;
    count_ = finish();
    // An equal logit that comes later is no better than the last one here.
    least_ = __builtin_nextafterf(tokens_[top_ - 1].logit, __builtin_inff());
  }

  const int64_t top_;
  Candidate* const tokens_;
  int64_t count_ = 0;
  float least_;  // what a token must have to be added
};

struct Scan {
  float max;     // NaN if there is one
  int32_t rank;  // 1 + number of tokens preferred to the given one
};

// One pass over the logits for all but the sum, which needs the maximum.
Scan scan_row(const Row& row, Candidate token, TopTokens* top) {
  Vec highest = broadcast(-__builtin_inff());
  IntVec nan{}, before{}, ids = lane_ids();
  const Vec limit = broadcast(token.logit);
  for (int64_t i = 0; i < row.size; i += kLanes, ids += kLanes) {
    const Vec logits = row(i);
    highest = max(logits, highest);
    nan |= logits != logits;
    // A set lane of a comparison is -1. Lanes past the end are -inf with higher ids: never before.
    before -= (logits > limit) | ((logits == limit) & (ids < token.token_id));
    top->show(row, i, logits);
  }
  int32_t rank = 1;
  for (int lane = 0; lane < kLanes; ++lane) rank += before[lane];
  return {any(nan) ? __builtin_nanf("") : max_lanes(highest), rank};
}

// A row with NaN has no order: ids -1, NaN logprobs, rank 0.
void write_invalid(const LogprobsParams& p, int64_t i) {
  for (int64_t j = 0; j <= p.top; ++j) {
    p.out_ids[i * p.ids_stride + j] = j == 0 ? p.token_ids[i] : -1;
    p.out_logprobs[i * p.logprobs_stride + j] = __builtin_nanf("");
  }
  p.out_ranks[i] = 0;
}

void write_row(const LogprobsParams& p, int64_t i, Candidate* buffer) {
  const Row row{p.logits + p.rows[i] * p.logits_stride, p.vocab};
  const Candidate token{row.logits[p.token_ids[i]], p.token_ids[i]};
  TopTokens top(p.top, buffer);
  const auto [max, rank] = scan_row(row, token, &top);
  if (!(max - max == 0.0f)) return write_invalid(p, i);
  const float log_total = log_sum(row, max);
  int32_t* ids = p.out_ids + i * p.ids_stride;
  float* logprobs = p.out_logprobs + i * p.logprobs_stride;
  ids[0] = token.token_id;
  logprobs[0] = (token.logit - max) - log_total;
  p.out_ranks[i] = rank;
  const int64_t count = top.finish();
  for (int64_t j = 0; j < p.top; ++j) {
    ids[1 + j] = j < count ? top[j].token_id : -1;
    logprobs[1 + j] = j < count ? (top[j].logit - max) - log_total : -__builtin_inff();
  }
}

// The same subtraction in the same order as in write_row, so both give a token the same bits.
void write_tokens(const TokenLogprobsParams& p, int64_t i) {
  const Row row{p.logits + p.rows[i] * p.logits_stride, p.vocab};
  const float max = highest_logit(row);
  const bool is_finite = max - max == 0.0f;
  const float log_total = is_finite ? log_sum(row, max) : 0.0f;
  for (int64_t j = p.cu_tokens[i]; j < p.cu_tokens[i + 1]; ++j) {
    p.out[j] = is_finite ? (row.logits[p.token_ids[j]] - max) - log_total : __builtin_nanf("");
  }
}

}  // namespace

void top_logprobs(const LogprobsParams& params) {
  parallel_tasks(params.count, params.count * params.vocab, [&params](int64_t i) {
    auto* buffer = static_cast<Candidate*>(
        std::malloc(static_cast<size_t>(TopTokens::capacity(params.top)) * sizeof(Candidate)));
    write_row(params, i, buffer);
    std::free(buffer);
  });
}

void token_logprobs(const TokenLogprobsParams& params) {
  parallel_tasks(params.count, params.count * params.vocab,
                 [&params](int64_t i) { write_tokens(params, i); });
}

}  // namespace splitserve::SPLITSERVE_ISA
