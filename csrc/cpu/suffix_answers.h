// Which answers were given lately, and how did they go on behind a row's last tokens? Each is found only from
// its own namespace.
//
// Answers lie one behind the other in a ring, each with a -1 behind it, which no token equals. Where there is
// no room for another one, the oldest leave whole. One that has been drafted from since it came goes to the
// front instead, so what is used stays.
#pragma once

#include <deque>
#include <vector>

#include "cpu/suffix_index.h"

namespace splitserve {

// 128 bits that the engine chose.
struct Namespace {
  uint64_t first = 0, second = 0;
  bool is_none() const { return first == 0 && second == 0; }
  bool operator==(const Namespace& other) const { return first == other.first && second == other.second; }
};

class SuffixAnswers {
 public:
  // At most so many tokens, a power of two, and answers; of 0 answers nothing is kept.
  SuffixAnswers(int64_t max_tokens, int64_t max_answers)
      : max_answers_(max_answers),
        head_(static_cast<uint32_t>(max_tokens)),
        tail_(head_),
        tokens_(max_tokens),
        numbers_(max_tokens),
        index_(max_tokens) {
    tokens_[slot(tail_ - 1)] = kBorder;
  }

  // Of a longer answer, the last quarter of all tokens.
  void add(const int32_t* tokens, int64_t count, Namespace owner) {
    const int64_t longest = index_.size() / 4;
    if (count > longest) tokens += count - longest, count = longest;
    if (count <= kSuffixLengths[0] || max_answers_ == 0 || owner.is_none()) return;
    int64_t num_chances = kMaxChances;
    while (static_cast<int64_t>(answers_.size()) == max_answers_ || num_free() < count + 1)
      retire_oldest(num_chances);
    append(tokens, count, owner);
  }

  int64_t num_answers() const { return static_cast<int64_t>(answers_.size()); }
  int64_t num_tokens() const { return index_.size() - num_free(); }

  SuffixMatches find(const int32_t* end, int64_t known, Namespace owner) const {
    if (answers_.empty() || owner.is_none()) return {};
    return longest_matches(index_, Text{*this, owner}, end, known, owner.first);
  }

  SuffixDrafts go_on(const SuffixMatches& matches, int64_t most, const SuffixRules& rules) const {
    return continue_matches(Text{*this, {}}, matches, most, rules);
  }

  // Notes that drafts were taken from here.
  void used(uint32_t place) { answer_at(place).was_used = true; }

 private:
  static constexpr int32_t kBorder = -1;
  // Answers that may be kept for each that comes.
  static constexpr int64_t kMaxChances = 4;

  struct Answer {
    Namespace owner;
    uint32_t begin;
    int64_t size;
    bool was_used;
  };

  struct Text {
    const SuffixAnswers& answers;
    Namespace owner;

    int64_t equal_before(uint32_t place, const int32_t* end, int64_t most) const {
      if (!answers.has(place)) return -1;
      if (!(answers.answer_at(place).owner == owner)) return 0;
      int64_t count = 0;
      while (count < most &&
             answers.tokens_[answers.slot(place - 1 - static_cast<uint32_t>(count))] == end[-1 - count])
        ++count;
      return count;
    }

    // Nothing is asked for behind a border.
    int32_t after(uint32_t place, int64_t i, const int32_t*) const {
      return answers.tokens_[answers.slot(place + static_cast<uint32_t>(i))];
    }
  };

  int64_t slot(uint32_t place) const { return place & (index_.size() - 1); }
  bool has(uint32_t place) const { return place - tail_ < head_ - tail_; }
  int64_t num_free() const { return index_.size() - static_cast<int64_t>(head_ - tail_); }
  Answer& answer_at(uint32_t place) { return answers_[numbers_[slot(place)] - first_number_]; }
  const Answer& answer_at(uint32_t place) const { return answers_[numbers_[slot(place)] - first_number_]; }

  void retire_oldest(int64_t& num_chances) {
    const Answer oldest = answers_.front();
    const bool stays = oldest.was_used && num_chances-- > 0;
    std::vector<int32_t> tokens;
    for (int64_t i = 0; stays && i < oldest.size; ++i)
      tokens.push_back(tokens_[slot(oldest.begin + static_cast<uint32_t>(i))]);
    answers_.pop_front();
    ++first_number_;
    tail_ = oldest.begin + static_cast<uint32_t>(oldest.size) + 1;
    if (stays) append(tokens.data(), oldest.size, oldest.owner);
  }

  void append(const int32_t* tokens, int64_t count, Namespace owner) {
    const uint32_t number = first_number_ + static_cast<uint32_t>(answers_.size());
    answers_.push_back({owner, head_, count, false});
    for (int64_t i = 0; i <= count; ++i, ++head_) {
      tokens_[slot(head_)] = i < count ? tokens[i] : kBorder;
      numbers_[slot(head_)] = number;
      if (i == count || head_ == 0) continue;
      const int32_t* end = tokens + i;
      index_.enter(head_, hash_suffixes([end](int64_t k) { return end[-1 - k]; }, i, owner.first));
    }
  }

  int64_t max_answers_;
  // The place behind the newest answer, and the first one's. Both go on beyond 2^32.
  uint32_t head_, tail_, first_number_ = 0;
  ZeroPages<int32_t> tokens_;
  ZeroPages<uint32_t> numbers_;  // of a place's answer
  SuffixIndex index_;
  std::deque<Answer> answers_;
};

}  // namespace splitserve
