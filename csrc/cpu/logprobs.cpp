// Checks and binding of top_logprobs and token_logprobs.
#include "cpu/logprobs.h"

#include "common/check.h"

namespace splitserve {
namespace {

void top_logprobs(TensorView out_ids, TensorView out_logprobs, TensorView out_ranks, TensorView logits,
                  TensorView rows, TensorView token_ids) {
  cpu_arg(logits, "logits").rank(2).type({kFloat32Type}).rows_contiguous();
  cpu_arg(rows, "rows").rank(1);
  LogprobsParams params{};
  params.count = rows.size(0);
  params.vocab = logits.size(1);
  SPLITSERVE_CHECK_VALUE(params.vocab > 0 && params.vocab < INT32_MAX, "logits: unsupported vocabulary size");
  cpu_arg(out_ids, "out_ids").rank(2).type({kInt32Type}).size(0, params.count).rows_contiguous();
  SPLITSERVE_CHECK_VALUE(out_ids.size(1) >= 1, "out_ids: needs at least one column");
  params.top = out_ids.size(1) - 1;
  cpu_arg(out_logprobs, "out_logprobs")
      .rank(2)
      .type({kFloat32Type})
      .size(0, params.count)
      .size(1, params.top + 1)
      .rows_contiguous();
  params.out_ids = static_cast<int32_t*>(out_ids.data_ptr());
  params.out_logprobs = static_cast<float*>(out_logprobs.data_ptr());
  params.out_ranks = cpu_arg(out_ranks, "out_ranks").vector(kInt32Type, params.count).data<int32_t>();
  params.logits = static_cast<const float*>(logits.data_ptr());
  params.rows = cpu_arg(rows, "rows").vector(kInt32Type, params.count).data<int32_t>();
  params.token_ids = cpu_arg(token_ids, "token_ids").vector(kInt32Type, params.count).data<int32_t>();
  params.ids_stride = out_ids.stride(0);
  params.logprobs_stride = out_logprobs.stride(0);
  params.logits_stride = logits.stride(0);
  for (int64_t i = 0; i < params.count; ++i) {
    const int32_t row = params.rows[i], token = params.token_ids[i];
    SPLITSERVE_CHECK_VALUE(row >= 0 && row < logits.size(0), "rows: " << row << " is not a row of logits");
    SPLITSERVE_CHECK_VALUE(token >= 0 && token < params.vocab,
                           "token_ids: " << token << " is not in the vocabulary");
  }
  SPLITSERVE_CALL_KERNEL(top_logprobs, params);
}

void check_tokens(const TokenLogprobsParams& params, int64_t all_rows, int64_t all_tokens) {
  const int32_t* ends = params.cu_tokens;
  SPLITSERVE_CHECK_VALUE(ends[0] == 0 && ends[params.count] == all_tokens,
                         "cu_tokens: must begin with 0 and end with the number of token_ids");
  for (int64_t i = 0; i < params.count; ++i) {
    SPLITSERVE_CHECK_VALUE(params.rows[i] >= 0 && params.rows[i] < all_rows,
                           "rows: " << params.rows[i] << " is not a row of logits");
    SPLITSERVE_CHECK_VALUE(ends[i] <= ends[i + 1], "cu_tokens: must not decrease");
  }
  for (int64_t j = 0; j < all_tokens; ++j) {
    SPLITSERVE_CHECK_VALUE(params.token_ids[j] >= 0 && params.token_ids[j] < params.vocab,
                           "token_ids: " << params.token_ids[j] << " is not in the vocabulary");
  }
}

void token_logprobs(TensorView out, TensorView logits, TensorView rows, TensorView cu_tokens,
                    TensorView token_ids) {
  cpu_arg(logits, "logits").rank(2).type({kFloat32Type}).rows_contiguous();
  cpu_arg(rows, "rows").rank(1);
  cpu_arg(token_ids, "token_ids").rank(1);
  TokenLogprobsParams params{};
  params.count = rows.size(0);
  params.vocab = logits.size(1);
  SPLITSERVE_CHECK_VALUE(params.vocab > 0 && params.vocab < INT32_MAX, "logits: unsupported vocabulary size");
  const int64_t all_tokens = token_ids.size(0);
  params.out = cpu_arg(out, "out").vector(kFloat32Type, all_tokens).data<float>();
  params.logits = static_cast<const float*>(logits.data_ptr());
  params.rows = cpu_arg(rows, "rows").vector(kInt32Type, params.count).data<int32_t>();
  params.cu_tokens = cpu_arg(cu_tokens, "cu_tokens").vector(kInt32Type, params.count + 1).data<int32_t>();
  params.token_ids = cpu_arg(token_ids, "token_ids").vector(kInt32Type, all_tokens).data<int32_t>();
  params.logits_stride = logits.stride(0);
  check_tokens(params, logits.size(0), all_tokens);
  SPLITSERVE_CALL_KERNEL(token_logprobs, params);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(top_logprobs, splitserve::top_logprobs);
SPLITSERVE_EXPORT(token_logprobs, splitserve::token_logprobs);
