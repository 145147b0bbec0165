// Arguments of the log-probability kernel.
#pragma once

#include "common/dtype.h"
#include "cpu/isa.h"

namespace splitserve {

struct LogprobsParams {
  int32_t* out_ids;          // [count, 1 + top]
  float* out_logprobs;       // [count, 1 + top]
  int32_t* out_ranks;        // [count]
  const float* logits;       // [all rows, vocab]
  const int32_t* rows;       // [count]: rows of logits
  const int32_t* token_ids;  // [count]
  int64_t ids_stride, logprobs_stride, logits_stride;
  int64_t count, top, vocab;
};

struct TokenLogprobsParams {
  float* out;                // [all tokens]
  const float* logits;       // [all rows, vocab]
  const int32_t* rows;       // [count]: rows of logits
  const int32_t* cu_tokens;  // [count + 1]: where the tokens of each row begin
  const int32_t* token_ids;  // [all tokens]
  int64_t logits_stride, count, vocab;
};

}  // namespace splitserve

SPLITSERVE_DECLARE_KERNEL(top_logprobs, LogprobsParams)
SPLITSERVE_DECLARE_KERNEL(token_logprobs, TokenLogprobsParams)
