// Prompt lookup: which tokens followed when the last few tokens of a row occurred before?
#include "cpu/drafts.h"
#include "cpu/ngram_index.h"

namespace splitserve {
namespace {

using tvm::ffi::Array;

struct NgramParams : DraftParams {
  // NgramColumns of worker/ops/columns.py.
  int32_t* num_indexed;
  Table heads, links;
  NgramLengths lengths;
};

// Writes drafts of one row, at most `most`, behind those it has; returns how many.
int64_t draft_ngram(const NgramParams& p, int64_t row, int64_t most) {
  int32_t* tokens = p.tokens.row(row);
  const NgramIndex index{tokens,          p.heads.row(row), p.links.row(row), p.num_indexed + row,
                         p.heads.columns, p.lengths};
  // Only tokens that count are entered, and not the last one, so that it does not find itself.
  index.grow(p.num_tokens[row]);
  const int64_t end = drafts_end(p, row), place = index.find(tokens + end, end);
  if (place == 0) return 0;
  // A text that repeats itself is continued by its own drafts.
  for (int64_t i = 0; i < most; ++i) tokens[end + i] = tokens[place + i];
  return most;
}

void draft_by_ngrams(const NgramParams& p) {
  for_rows(p, [&p](int64_t row, int64_t) {
    if (p.allowed[row] > 0) drafted(p, row, draft_ngram(p, row, p.allowed[row]));
  });
}

void draft_ngrams(TensorView rows, DraftArgs batch, DraftArgs drafts, DraftArgs ngrams, TensorView call,
                  Array<int64_t> lengths) {
  NgramParams params{};
  read_drafts(params, rows, batch, drafts, call);
  ReadColumns read_ngrams(ngrams, params.num_rows);
  read_ngrams("num_indexed", params.num_indexed);
  read_ngrams("heads", params.heads);
  read_ngrams("links", params.links);
  read_ngrams.done();
  params.lengths = lengths_arg(lengths);
  check_index(params.heads, params.links, params.tokens);
  run_kernel(params, draft_by_ngrams);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(draft_ngrams, splitserve::draft_ngrams);
