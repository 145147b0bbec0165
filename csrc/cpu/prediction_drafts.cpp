// A text that the client expects the answer to repeat: which of its tokens come next?
//
// The answer is followed through the text: what was drafted last is where the next drafts begin, as long as
// the answer agrees with it. Where it does not, its last few tokens are looked up.
#include "cpu/drafts.h"
#include "cpu/ngram_index.h"

namespace splitserve {
namespace {

using tvm::ffi::Array;

struct PredictionParams : DraftParams {
  // PredictionColumns of worker/ops/columns.py.
  Table text;
  const int32_t *num_text, *num_prompt;
  int32_t *place, *place_end, *num_indexed;
  Table heads, links;
  NgramLengths lengths;
};

// Writes drafts of one row, at most `most`, behind those it has; returns how
// many.
int64_t draft_prediction(const PredictionParams& p, int64_t row, int64_t most) {
  const int64_t num_text = p.num_text[row], end = drafts_end(p, row), known = end - p.num_prompt[row];
  if (num_text == 0) return 0;
  const int32_t* text = p.text.row(row);
  int32_t* tokens = p.tokens.row(row);
  const NgramIndex index{text,     p.heads.row(row), p.links.row(row), p.num_indexed + row, p.heads.columns,
                         p.lengths};
  index.grow(num_text);
  int64_t place = -1, longest = 0;
  const int64_t expected = p.place[row] + end - p.place_end[row];
  if (expected >= 0 && expected < num_text) {
    const int64_t comparable = std::min(known, expected);
    longest = equal_before(text + expected, tokens + end, std::min(comparable, p.lengths.longest));
    if (longest >= std::min(comparable, p.lengths.shortest)) place = expected;
  }
  const int64_t found = index.find(tokens + end, known, place < 0 ? 0 : longest);
  if (found > 0) place = found;
  if (place < 0) return 0;
  p.place[row] = static_cast<int32_t>(place);
  p.place_end[row] = static_cast<int32_t>(end);
  const int64_t count = std::min(most, num_text - place);
  std::copy_n(text + place, count, tokens + end);
  return count;
}

void draft_by_predictions(const PredictionParams& p) {
  for_rows(p, [&p](int64_t row, int64_t) {
    if (p.allowed[row] > 0) drafted(p, row, draft_prediction(p, row, p.allowed[row]));
  });
}

void draft_predictions(TensorView rows, DraftArgs batch, DraftArgs drafts, DraftArgs predictions,
                       TensorView call, Array<int64_t> lengths) {
  PredictionParams params{};
  read_drafts(params, rows, batch, drafts, call);
  ReadColumns read_predictions(predictions, params.num_rows);
  read_predictions("text", params.text);
  read_predictions("num_text", params.num_text);
  read_predictions("num_prompt", params.num_prompt);
  read_predictions("place", params.place);
  read_predictions("place_end", params.place_end);
  read_predictions("num_indexed", params.num_indexed);
  read_predictions("heads", params.heads);
  read_predictions("links", params.links);
  read_predictions.done();
  params.lengths = lengths_arg(lengths);
  check_index(params.heads, params.links, params.text);
  run_kernel(params, draft_by_predictions);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(draft_predictions, splitserve::draft_predictions);
