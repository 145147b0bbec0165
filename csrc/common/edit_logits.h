// Arguments of the kernel that adds to single logits.
#pragma once

#include <cstdint>

namespace splitserve {

struct EditLogitsParams {
  float* logits;             // [all rows, vocab]
  const int32_t* rows;       // [count]: distinct rows of logits
  const int32_t* cu_edits;   // [count + 1]: where the edits of each row begin
  const int32_t* token_ids;  // [all edits]
  const float* values;       // [all edits]
  int64_t logits_stride;
  int64_t count, vocab, all_rows, all_edits;
};

}  // namespace splitserve
