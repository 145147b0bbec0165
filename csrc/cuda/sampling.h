// Arguments of the sampling kernels on the GPU; ids that are out of range are skipped or give what a NaN
// gives.
#pragma once

#include <cstdint>

namespace splitserve {

// Most alternatives of one call: they are ordered in shared memory.
inline constexpr int kMaxTopLogprobs = 1024;

struct SampleParams {
  int32_t* out_token_ids;    // [rows]
  const float* logits;       // [rows, vocab]
  const float* temperature;  // [rows]; 0: the most likely token
  const int32_t* top_k;      // [rows]; <= 0: off
  const float* top_p;        // [rows]; >= 1: off
  const float* min_p;        // [rows]; <= 0: off
  const int64_t* seeds;      // [rows]
  const int64_t* positions;  // [rows]
  const uint32_t* masks;     // [num_masks, mask_words(vocab)]; nullptr: no row has one
  const int32_t* mask_rows;  // [rows]: the row's mask; negative: none
  int64_t logits_stride, masks_stride;
  int32_t rows, vocab, num_masks;
};

struct LogprobsParams {
  int32_t* out_ids;          // [count, 1 + top]
  float* out_logprobs;       // [count, 1 + top]
  int32_t* out_ranks;        // [count]
  const float* logits;       // [all rows, vocab]
  const int32_t* rows;       // [count]: rows of logits
  const int32_t* token_ids;  // [count]
  int64_t ids_stride, logprobs_stride, logits_stride;
  int32_t count, top, vocab, all_rows;
};

struct TokenLogprobsParams {
  float* out;                // [all tokens]
  const float* logits;       // [all rows, vocab]
  const int32_t* rows;       // [count]: rows of logits
  const int32_t* cu_tokens;  // [count + 1]: where the tokens of each row begin
  const int32_t* token_ids;  // [all tokens]
  int64_t logits_stride;
  int32_t count, vocab, all_rows, all_tokens;
};

struct PenaltyParams {
  float* logits;             // [all rows, vocab]
  const int32_t* rows;       // [count]
  const int32_t* token_ids;  // [histories, max_len]; ids outside the vocabulary are skipped
  const int32_t* history_rows;
  const int32_t* prompt_lens;
  const int32_t* total_lens;
  const float* repetition;
  const float* frequency;
  const float* presence;
  int64_t logits_stride, token_ids_stride;
  int32_t count, vocab, all_rows, histories, max_len;
};

}  // namespace splitserve
