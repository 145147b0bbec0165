// What all drafters share: how many tokens each row of a step may draft, and how many stand behind it by now.
#pragma once

#include <algorithm>

#include "cpu/columns.h"
#include "cpu/program.h"

namespace splitserve {

using DraftArgs = tvm::ffi::Array<tvm::ffi::Tensor>;

// What a step is told and how far it is, in one column: rows of the step, most drafts of a row, drafts that
// there is still room for, rows that have ended, drafts so far, and rows that the next drafter may extend.
enum DraftCall : int64_t { kNumRows, kMaxDrafts, kLeft, kNumEnded, kNumDrafts, kNumAllowed, kCallSize };

struct DraftParams {
  // Columns of the batch.
  const bool* occupied;
  const uint16_t* features;
  Table tokens, block_table;
  const int32_t *num_tokens, *num_blocks;
  int32_t* num_computed;
  // DraftColumns of worker/ops/columns.py.
  const int32_t* max_num_computed;
  int32_t *room, *allowed, *num_drafts;
  // The step's rows, of which the first call[kNumRows] count.
  const int32_t* rows;
  int64_t num_rows;
  int32_t* call;
};

template <typename Visitor>
void visit_drafts(Visitor&& column, DraftParams& p) {
  column("max_num_computed", p.max_num_computed);
  column("room", p.room);
  column("allowed", p.allowed);
  column("num_drafts", p.num_drafts);
}

inline void read_drafts(DraftParams& p, TensorView rows, const DraftArgs& batch, const DraftArgs& drafts,
                        TensorView call) {
  p.num_rows = batch.empty() ? 0 : batch[0].size(0);
  p.rows = cpu_arg(rows, "rows").vector(kInt32Type, p.num_rows).data<int32_t>();
  p.call = cpu_arg(call, "call").vector(kInt32Type, kCallSize).data<int32_t>();
  ReadColumns read_batch(batch, p.num_rows), read_columns(drafts, p.num_rows);
  visit_batch(read_batch, p);
  read_batch.done();
  visit_drafts(read_columns, p);
  read_columns.done();
}

// Calls function(row, place in the step) for the rows of the step that are in the batch; it refuses others.
template <typename Function>
void for_rows(const DraftParams& p, Function function) {
  const int64_t count = std::min(int64_t{p.call[kNumRows]}, p.num_rows);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = p.rows[i];
    if (row >= 0 && row < p.num_rows && p.occupied[row]) function(row, i);
  }
}

// Where the next draft of a row stands among its tokens.
inline int64_t drafts_end(const DraftParams& p, int64_t row) {
  return int64_t{p.num_tokens[row]} + p.num_drafts[row];
}

// Notes that so many more drafts stand behind a row's tokens.
inline void drafted(const DraftParams& p, int64_t row, int64_t count) {
  p.num_drafts[row] += static_cast<int32_t>(count);
  p.call[kNumDrafts] += static_cast<int32_t>(count);
  p.call[kLeft] -= static_cast<int32_t>(count);
}

}  // namespace splitserve
