// How many tokens may each row of a step draft: at all, and by the drafter whose turn it is?
#include "cpu/drafts.h"

namespace splitserve {
namespace {

using tvm::ffi::Array;

// In num_drafts: the row has nothing left to compute.
constexpr int32_t kEnded = -1;

struct BeginParams : DraftParams {
  const int32_t* num_new;
  int64_t block_size, excluded, max_tokens, max_logits;
};

struct AllowParams : DraftParams {
  const int32_t* width;
  int32_t* pause;
};

int64_t room_of_row(const BeginParams& p, int64_t row) {
  const int64_t end = p.num_tokens[row], blocks = p.num_blocks[row] * p.block_size;
  const int64_t last = std::min({int64_t{p.max_num_computed[row]}, blocks, p.tokens.columns - 1});
  return std::max(int64_t{0}, std::min(int64_t{p.call[kMaxDrafts]}, last - end));
}

void begin_all(const BeginParams& p) {
  const int64_t count = std::min(int64_t{p.call[kNumRows]}, p.num_rows);
  int64_t num_tokens = 0;
  for (int64_t i = 0; i < count; ++i) num_tokens += p.num_new[i];
  p.call[kLeft] = static_cast<int32_t>(std::min(p.max_tokens - num_tokens, p.max_logits - count));
  p.call[kNumEnded] = p.call[kNumDrafts] = p.call[kNumAllowed] = 0;
  for_rows(p, [&p](int64_t row, int64_t i) {
    p.num_drafts[row] = p.room[row] = p.allowed[row] = 0;
    if (p.num_computed[row] >= p.max_num_computed[row]) {
      p.num_drafts[row] = kEnded;
      ++p.call[kNumEnded];
      return;
    }
    const bool samples = p.num_computed[row] + int64_t{p.num_new[i]} == p.num_tokens[row];
    if (samples && (p.features[row] & p.excluded) == 0)
      p.room[row] = static_cast<int32_t>(room_of_row(p, row));
  });
}

void allow_all(const AllowParams& p) {
  int64_t left = p.call[kLeft];
  p.call[kNumAllowed] = 0;
  for_rows(p, [&p, &left](int64_t row, int64_t) {
    p.allowed[row] = 0;
    const int64_t room = std::min(left, int64_t{p.room[row]} - p.num_drafts[row]);
    if (room <= 0 || p.num_drafts[row] < 0) return;
    if (p.pause[row] > 0) {
      --p.pause[row];
      return;
    }
    const int64_t allowed = std::min(room, int64_t{p.width[row]});
    if (allowed <= 0) return;
    p.allowed[row] = static_cast<int32_t>(allowed);
    left -= allowed;
    ++p.call[kNumAllowed];
  });
}

void begin_drafts(TensorView rows, TensorView num_new, DraftArgs batch, DraftArgs drafts, TensorView call,
                  Array<int64_t> limits) {
  BeginParams params{};
  read_drafts(params, rows, batch, drafts, call);
  params.num_new = cpu_arg(num_new, "num_new").vector(kInt32Type, params.num_rows).data<int32_t>();
  SPLITSERVE_CHECK_VALUE(limits.size() == 4, "limits: expected 4, got " << limits.size());
  params.block_size = limits[0];
  params.excluded = limits[1];
  params.max_tokens = limits[2];
  params.max_logits = limits[3];
  SPLITSERVE_CHECK_VALUE(params.block_size > 0, "limits: a block of " << params.block_size << " tokens");
  run_kernel(params, begin_all);
}

void allow_drafts(TensorView rows, DraftArgs batch, DraftArgs drafts, DraftArgs account, TensorView call) {
  AllowParams params{};
  read_drafts(params, rows, batch, drafts, call);
  ReadColumns read_account(account, params.num_rows);
  read_account("width", params.width);
  read_account("pause", params.pause);
  read_account.done();
  run_kernel(params, allow_all);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(begin_drafts, splitserve::begin_drafts);
SPLITSERVE_EXPORT(allow_drafts, splitserve::allow_drafts);
