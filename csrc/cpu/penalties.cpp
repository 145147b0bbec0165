// Repetition, frequency and presence penalties, applied to logits in place.
//
// Tokens are counted anew from each request's history on every call: cost follows the history, and there is
// no vocabulary-sized state to keep in step with the scheduler.
#include <cstdlib>
#include <vector>

#include "common/check.h"
#include "cpu/parallel.h"

namespace splitserve {
namespace {

struct TokenCount {
  int32_t token_id = -1;
  int32_t outputs = 0;  // occurrences among output tokens
};

// Open addressing, at most half full.
class TokenCounter {
 public:
  explicit TokenCounter(int64_t tokens) {
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * tokens) ++bits;
    shift_ = 32 - bits;
    slots_.resize(size_t{1} << bits);
  }

  void add(int32_t token_id, bool is_output) {
    // Fibonacci hashing: the upper bits of the product are the well-mixed ones.
    size_t slot = (static_cast<uint32_t>(token_id) * 2654435769u) >> shift_;
    while (slots_[slot].token_id != token_id && slots_[slot].token_id >= 0)
      slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot].token_id = token_id;
    slots_[slot].outputs += is_output ? 1 : 0;
  }

  const std::vector<TokenCount>& slots() const { return slots_; }

 private:
  std::vector<TokenCount> slots_;
  int shift_;
};

struct PenaltyRow {
  float* logits;
  int64_t vocab;
  const int32_t* history;
  int64_t prompt_len, total_len;
  float repetition, frequency, presence;
};

void apply(const PenaltyRow& row) {
  TokenCounter counter(row.total_len);
  for (int64_t i = 0; i < row.total_len; ++i) {
    const int32_t token_id = row.history[i];
    // A token whose value is not known yet is marked by a negative id.
    if (token_id >= 0 && token_id < row.vocab) counter.add(token_id, i >= row.prompt_len);
  }
  for (const TokenCount& count : counter.slots()) {
    if (count.token_id < 0) continue;
    float& logit = row.logits[count.token_id];
    logit = logit > 0.0f ? logit / row.repetition : logit * row.repetition;
    if (count.outputs > 0) {
      logit = logit - row.frequency * static_cast<float>(count.outputs);
      logit = logit - row.presence;
    }
  }
}

struct PenaltyVectors {
  const int32_t *rows, *history_rows, *prompt_lens, *total_lens;
  const float *repetition, *frequency, *presence;
};

void check_row(const PenaltyVectors& v, int64_t i, const TensorView& logits, const TensorView& token_ids) {
  SPLITSERVE_CHECK_VALUE(v.rows[i] >= 0 && v.rows[i] < logits.size(0),
                         "rows: " << v.rows[i] << " is not a row");
  SPLITSERVE_CHECK_VALUE(v.history_rows[i] >= 0 && v.history_rows[i] < token_ids.size(0),
                         "history_rows: " << v.history_rows[i] << " is not a row of token_ids");
  SPLITSERVE_CHECK_VALUE(v.total_lens[i] >= 0 && v.total_lens[i] <= token_ids.size(1),
                         "total_lens: " << v.total_lens[i] << " exceeds token_ids");
  SPLITSERVE_CHECK_VALUE(v.repetition[i] > 0.0f, "repetition: must be positive");
}

void apply_penalties(TensorView logits, TensorView rows, TensorView token_ids, TensorView history_rows,
                     TensorView prompt_lens, TensorView total_lens, TensorView repetition,
                     TensorView frequency, TensorView presence) {
  cpu_arg(logits, "logits").rank(2).type({kFloat32Type}).rows_contiguous();
  cpu_arg(token_ids, "token_ids").rank(2).type({kInt32Type}).rows_contiguous();
  cpu_arg(rows, "rows").rank(1);
  const int64_t count = rows.size(0);
  const PenaltyVectors v{
      cpu_arg(rows, "rows").vector(kInt32Type, count).data<int32_t>(),
      cpu_arg(history_rows, "history_rows").vector(kInt32Type, count).data<int32_t>(),
      cpu_arg(prompt_lens, "prompt_lens").vector(kInt32Type, count).data<int32_t>(),
      cpu_arg(total_lens, "total_lens").vector(kInt32Type, count).data<int32_t>(),
      cpu_arg(repetition, "repetition").vector(kFloat32Type, count).data<float>(),
      cpu_arg(frequency, "frequency").vector(kFloat32Type, count).data<float>(),
      cpu_arg(presence, "presence").vector(kFloat32Type, count).data<float>(),
  };
  int64_t work = 0;
  for (int64_t i = 0; i < count; ++i) {
    check_row(v, i, logits, token_ids);
    work += 8 * v.total_lens[i];
  }
  host::parallel_tasks(count, work, [&](int64_t i) {
    apply({static_cast<float*>(logits.data_ptr()) + v.rows[i] * logits.stride(0), logits.size(1),
           static_cast<const int32_t*>(token_ids.data_ptr()) + v.history_rows[i] * token_ids.stride(0),
           v.prompt_lens[i], v.total_lens[i], v.repetition[i], v.frequency[i], v.presence[i]});
  });
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(apply_penalties, splitserve::apply_penalties);
