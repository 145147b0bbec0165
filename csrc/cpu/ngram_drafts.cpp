// Prompt lookup: which tokens followed when the last few tokens of a row occurred before?
//
// Every row has an index of its n-grams of min_ngram tokens: heads[hash] is the place behind the latest one
// with that hash, links[place] that behind the one before it. It grows with the row's tokens and never
// shrinks, since only tokens that count are entered.
#include <algorithm>

#include "cpu/columns.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Tensor;

// Earlier places that are looked at per draft, the latest first.
constexpr int64_t kMaxPlaces = 32;
// In num_drafts: the row has nothing left to compute.
constexpr int32_t kEnded = -1;

// What a call is told and answers, in one column.
enum Call : int64_t { kNumRows, kMaxDrafts, kNumMarked, kNumDrafts, kCallSize };

struct DraftParams {
  // Columns of the batch.
  const bool* occupied;
  const uint16_t* features;
  Table tokens, block_table;
  const int32_t *num_tokens, *num_blocks;
  int32_t* num_computed;
  // Columns of the drafter.
  const int32_t* max_num_computed;
  const int32_t* width;
  int32_t *pause, *num_indexed, *num_drafts;
  Table heads, links;
  // The step's rows and how many tokens of each are computed, of which the first call[kNumRows] count.
  const int32_t *rows, *num_new;
  int64_t num_rows;
  int32_t* call;
  int64_t block_size, min_ngram, max_ngram, excluded, max_tokens, max_logits;
};

template <typename Visitor>
void visit_drafter(Visitor&& column, DraftParams& p) {
  column("max_num_computed", p.max_num_computed);
  column("width", p.width);
  column("pause", p.pause);
  column("num_indexed", p.num_indexed);
  column("num_drafts", p.num_drafts);
  column("heads", p.heads);
  column("links", p.links);
}

// Place of the n-gram that ends before `end` in the table of heads, whose size is a power of two.
int64_t hash_before(const int32_t* tokens, int64_t end, const DraftParams& p) {
  uint64_t hash = 0;
  for (int64_t i = end - p.min_ngram; i < end; ++i)
    hash = (hash ^ static_cast<uint32_t>(tokens[i])) * 0x9E3779B97F4A7C15u;
  return static_cast<int64_t>(hash >> 32) & (p.heads.columns - 1);
}

// Enters the n-grams that end before `end`, so that the last one can be looked up without finding itself.
void index_before(const DraftParams& p, int64_t row, int64_t end) {
  const int32_t* tokens = p.tokens.row(row);
  int32_t *heads = p.heads.row(row), *links = p.links.row(row);
  int64_t place = p.num_indexed[row];
  if (place == 0) std::fill(heads, heads + p.heads.columns, 0);
  for (place = std::max(place, p.min_ngram); place < end; ++place) {
    int32_t& head = heads[hash_before(tokens, place, p)];
    links[place] = head;
    head = static_cast<int32_t>(place);
  }
  p.num_indexed[row] = static_cast<int32_t>(std::max(place, int64_t{1}));
}

// Tokens before `a` and before `b` that are equal, at most max_ngram.
int64_t equal_before(const int32_t* tokens, int64_t a, int64_t b, int64_t max_ngram) {
  int64_t count = 0;
  while (count < max_ngram && count < a && tokens[a - 1 - count] == tokens[b - 1 - count]) ++count;
  return count;
}

// The place behind the longest n-gram that is the row's end, the latest of equals; 0 if there is none.
int64_t find_place(const DraftParams& p, int64_t row, int64_t end) {
  if (end < p.min_ngram) return 0;
  const int32_t *tokens = p.tokens.row(row), *links = p.links.row(row);
  int64_t best = 0, longest = p.min_ngram - 1;
  int64_t place = p.heads.row(row)[hash_before(tokens, end, p)];
  for (int64_t i = 0; i < kMaxPlaces && place > 0 && longest < p.max_ngram; ++i, place = links[place]) {
    const int64_t length = equal_before(tokens, place, end, p.max_ngram);
    if (length > longest) {
      longest = length;
      best = place;
    }
  }
  return best;
}

// Drafts of one row, at most `most`, written behind its tokens.
int64_t draft_row(const DraftParams& p, int64_t row, int64_t most) {
  const int64_t end = p.num_tokens[row];
  index_before(p, row, end);
  const int64_t place = find_place(p, row, end);
  if (place == 0) return 0;
  int32_t* tokens = p.tokens.row(row);
  // A text that repeats itself is continued by its own drafts.
  for (int64_t i = 0; i < most; ++i) tokens[end + i] = tokens[place + i];
  return most;
}

int64_t most_drafts(const DraftParams& p, int64_t row) {
  const int64_t end = p.num_tokens[row], room = p.num_blocks[row] * p.block_size;
  const int64_t last = std::min({int64_t{p.max_num_computed[row]}, room, p.tokens.columns - 1});
  return std::min({int64_t{p.call[kMaxDrafts]}, int64_t{p.width[row]}, last - end});
}

// Drafts that the step has room for.
int64_t room_of_step(const DraftParams& p, int64_t count) {
  int64_t num_tokens = 0;
  for (int64_t i = 0; i < count; ++i) num_tokens += p.num_new[i];
  return std::min(p.max_tokens - num_tokens, p.max_logits - count);
}

void draft_all(const DraftParams& p) {
  const int64_t num_rows = std::min(int64_t{p.call[kNumRows]}, p.num_rows);
  int64_t left = room_of_step(p, num_rows);
  p.call[kNumMarked] = p.call[kNumDrafts] = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t row = p.rows[i];
    if (row < 0 || row >= p.num_rows || !p.occupied[row]) continue;  // the batch refuses it
    p.num_drafts[row] = 0;
    if (p.num_computed[row] >= p.max_num_computed[row]) {
      p.num_drafts[row] = kEnded;
      ++p.call[kNumMarked];
      continue;
    }
    const bool samples = p.num_computed[row] + int64_t{p.num_new[i]} == p.num_tokens[row];
    const int64_t most = std::min(left, most_drafts(p, row));
    if (!samples || most <= 0 || (p.features[row] & p.excluded) != 0) continue;
    if (p.pause[row] > 0) {
      --p.pause[row];
      continue;
    }
    const int64_t count = draft_row(p, row, most);
    p.num_drafts[row] = static_cast<int32_t>(count);
    left -= count;
    p.call[kNumDrafts] += static_cast<int32_t>(count);
    if (count > 0) ++p.call[kNumMarked];
  }
}

void draft_ngrams(TensorView rows, TensorView num_new, Array<Tensor> batch, Array<Tensor> drafter,
                  TensorView call, Array<int64_t> limits) {
  DraftParams params{};
  params.num_rows = batch.empty() ? 0 : batch[0].size(0);
  params.rows = cpu_arg(rows, "rows").vector(kInt32Type, params.num_rows).data<int32_t>();
  params.num_new = cpu_arg(num_new, "num_new").vector(kInt32Type, params.num_rows).data<int32_t>();
  ReadColumns read_batch(batch, params.num_rows), read_drafter(drafter, params.num_rows);
  visit_batch(read_batch, params);
  read_batch.done();
  visit_drafter(read_drafter, params);
  read_drafter.done();
  params.call = cpu_arg(call, "call").vector(kInt32Type, kCallSize).data<int32_t>();
  const int64_t num_heads = params.heads.columns;
  SPLITSERVE_CHECK_VALUE(num_heads > 0 && (num_heads & (num_heads - 1)) == 0,
                         "heads: expected a power of two per row, got " << num_heads);
  SPLITSERVE_CHECK_VALUE(
      params.links.columns >= params.tokens.columns,
      "links: expected " << params.tokens.columns << " per row, got " << params.links.columns);
  SPLITSERVE_CHECK_VALUE(limits.size() == 6, "limits: expected 6, got " << limits.size());
  params.block_size = limits[0];
  params.min_ngram = limits[1];
  params.max_ngram = limits[2];
  params.excluded = limits[3];
  params.max_tokens = limits[4];
  params.max_logits = limits[5];
  SPLITSERVE_CHECK_VALUE(
      1 <= params.min_ngram && params.min_ngram <= params.max_ngram,
      "limits: n-grams of " << params.min_ngram << " to " << params.max_ngram << " tokens");
  SPLITSERVE_CHECK_VALUE(params.block_size > 0, "limits: a block of " << params.block_size << " tokens");
  run_kernel(params, draft_all);
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(draft_ngrams, splitserve::draft_ngrams);
