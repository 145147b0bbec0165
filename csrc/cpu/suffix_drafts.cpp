// Which tokens mostly followed when the last tokens of a row occurred before, in it or in recent answers?
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <memory>
#include <vector>

#include "cpu/drafts.h"
#include "cpu/suffix_answers.h"

namespace splitserve {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Function;

// The tokens of one row, entered as they come to count.
class SuffixRowText {
 public:
  SuffixMatches find(const int32_t* tokens, int64_t num_tokens, int64_t end, int64_t known) {
    grow(tokens, num_tokens);
    return longest_matches(index_, Text{tokens, end}, tokens + end, known, 0);
  }

  static SuffixDrafts go_on(const int32_t* tokens, int64_t end, const SuffixMatches& matches, int64_t most,
                            const SuffixRules& rules) {
    return continue_matches(Text{tokens, end}, matches, most, rules);
  }

 private:
  static constexpr int64_t kMinSize = 256;

  struct Text {
    const int32_t* tokens;
    int64_t end;

    int64_t equal_before(uint32_t place, const int32_t* other, int64_t most) const {
      most = std::min(most, int64_t{place});
      int64_t count = 0;
      while (count < most && tokens[place - 1 - count] == other[-1 - count]) ++count;
      return count;
    }

    // A text that repeats itself is continued by its own drafts.
    int32_t after(uint32_t place, int64_t i, const int32_t* drafts) const {
      const int64_t next = place + i;
      return next < end ? tokens[next] : drafts[next - end];
    }
  };

  // Enters the places of all tokens but the last, so that the row's end does not find itself.
  void grow(const int32_t* tokens, int64_t num_tokens) {
    if (num_tokens > index_.size()) {
      int64_t size = std::max(kMinSize, index_.size());
      while (size < num_tokens) size *= 2;
      index_ = SuffixIndex(size);
      next_ = kSuffixLengths[0];
    }
    for (; next_ < num_tokens; ++next_) {
      const int32_t* place = tokens + next_;
      index_.enter(static_cast<uint32_t>(next_),
                   hash_suffixes([place](int64_t i) { return place[-1 - i]; }, next_, 0));
    }
  }

  SuffixIndex index_;
  int64_t next_ = kSuffixLengths[0];
};

struct SuffixRow {
  SuffixRowText text;
  Namespace owner;
  int64_t answer_begin = 0;  // what was known before was entered before, or is the prompt
};

class SuffixDrafter {
 public:
  SuffixDrafter(const DraftParams& params, const SuffixRules& rules, int64_t max_tokens, int64_t max_answers)
      : p_(params), rules_(rules), rows_(params.num_rows), answers_(max_tokens, max_answers) {}

  void enter(int64_t row, int64_t answer_begin, Namespace owner) {
    check_row(row);
    rows_[row] = SuffixRow{{}, owner, std::max(answer_begin, int64_t{0})};
  }

  // Takes the answer of a row that is still in the batch. The last token may not be known yet.
  void leave(int64_t row) {
    check_row(row);
    const SuffixRow& left = rows_[row];
    const int64_t count = std::min(p_.num_tokens[row], p_.num_computed[row]) - left.answer_begin;
    if (count > 0) answers_.add(p_.tokens.row(row) + left.answer_begin, count, left.owner);
    rows_[row] = SuffixRow{};
  }

  void draft() {
    for_rows(p_, [this](int64_t row, int64_t) {
      if (p_.allowed[row] > 0) drafted(p_, row, draft_row(row, p_.allowed[row]));
    });
  }

  int64_t num_answers() const { return answers_.num_answers(); }

 private:
  int64_t draft_row(int64_t row, int64_t most) {
    int32_t* tokens = p_.tokens.row(row);
    const int64_t end = drafts_end(p_, row), known = std::min(end, rules_.max_depth - most);
    const SuffixMatches own = rows_[row].text.find(tokens, p_.num_tokens[row], end, known);
    const SuffixMatches others = answers_.find(tokens + end, known, rows_[row].owner);
    SuffixDrafts drafts = SuffixRowText::go_on(tokens, end, own, most, rules_);
    const SuffixDrafts from_others = answers_.go_on(others, most, rules_);
    if (from_others.expected > drafts.expected) {
      drafts = from_others;
      answers_.used(drafts.place);
    }
    std::copy_n(drafts.tokens, drafts.count, tokens + end);
    return drafts.count;
  }

  void check_row(int64_t row) const {
    SPLITSERVE_CHECK_VALUE(row >= 0 && row < p_.num_rows,
                           "row: expected one of " << p_.num_rows << ", got " << row);
  }

  DraftParams p_;
  SuffixRules rules_;
  std::vector<SuffixRow> rows_;
  SuffixAnswers answers_;
};

bool is_ring_size(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

Array<Function> suffix_drafter(TensorView rows, DraftArgs batch, DraftArgs drafts, TensorView call,
                               Array<int64_t> sizes, Array<double> shares) {
  DraftParams params{};
  read_drafts(params, rows, batch, drafts, call);
  SPLITSERVE_CHECK_VALUE(sizes.size() == 3, "sizes: expected 3, got " << sizes.size());
  SPLITSERVE_CHECK_VALUE(shares.size() == 2, "shares: expected 2, got " << shares.size());
  SPLITSERVE_CHECK_VALUE(is_ring_size(sizes[1]) && sizes[1] <= int64_t{1} << 30,
                         "sizes: expected a power of two of tokens, got " << sizes[1]);
  SPLITSERVE_CHECK_VALUE(sizes[2] >= 0, "sizes: " << sizes[2] << " answers");
  const SuffixRules rules{sizes[0], shares[0], shares[1]};
  const auto drafter = std::make_shared<SuffixDrafter>(params, rules, sizes[1], sizes[2]);
  return {Function::FromTyped([drafter] { drafter->draft(); }),
          Function::FromTyped([drafter](int64_t row, int64_t answer_begin, int64_t first, int64_t second) {
            const Namespace owner{static_cast<uint64_t>(first), static_cast<uint64_t>(second)};
            drafter->enter(row, answer_begin, owner);
          }),
          Function::FromTyped([drafter](int64_t row) { drafter->leave(row); }),
          Function::FromTyped([drafter] { return drafter->num_answers(); })};
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(suffix_drafter, splitserve::suffix_drafter);
