// Where in a text did the last tokens of a row occur before, and what followed there?
//
// A place is the number of a token. It is entered under the hashes of the 2, 4, 8 and 16 tokens in front of
// it: heads[hash] is the latest place with that hash, links how far behind the one before it is. Whoever
// shares L tokens with a row is found under the longest of these lengths that is not above L, so a search
// that begins with 16 finds the longest match among the places of one hash.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace splitserve {

constexpr int64_t kSuffixLengths[] = {2, 4, 8, 16};
constexpr int64_t kNumSuffixLengths = 4;
// Places that are looked at, the latest first: those whose tokens agree, and all of the same hash.
constexpr int64_t kMaxMatches = 64, kMaxVisited = 256;
// Of a row and step; settings allow fewer.
constexpr int64_t kMaxSuffixDrafts = 16;

// Zeros whose pages take memory once they are written to.
template <typename T>
class ZeroPages {
 public:
  ZeroPages() = default;
  explicit ZeroPages(int64_t size) : data_(static_cast<T*>(std::calloc(size, sizeof(T)))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
};

struct SuffixHashes {
  uint32_t of[kNumSuffixLengths];
  int64_t count;  // fewer if there are not so many tokens
};

// Hashes of the tokens in front of a place, of which before(0) is the nearest.
template <typename Before>
SuffixHashes hash_suffixes(const Before& before, int64_t known, uint64_t seed) {
  SuffixHashes hashes{};
  uint64_t hash = seed;
  for (int64_t i = 0; hashes.count < kNumSuffixLengths && kSuffixLengths[hashes.count] <= known;) {
    for (; i < kSuffixLengths[hashes.count]; ++i)
      hash = (hash ^ static_cast<uint32_t>(before(i))) * 0x9E3779B97F4A7C15u;
    hashes.of[hashes.count++] = static_cast<uint32_t>(hash >> 32);
  }
  return hashes;
}

// Places may be counted on beyond 2^32: a text tells which of them it still has.
class SuffixIndex {
 public:
  SuffixIndex() = default;
  // Room for a power of two of places side by side.
  explicit SuffixIndex(int64_t size)
      : size_(size), heads_(kNumSuffixLengths * size), links_(kNumSuffixLengths * size) {}

  int64_t size() const { return size_; }

  // Place 0 is none.
  void enter(uint32_t place, const SuffixHashes& hashes) const {
    for (int64_t i = 0; i < hashes.count; ++i) {
      uint32_t& head = heads_[i * size_ + (hashes.of[i] & (size_ - 1))];
      links_[i * size_ + (place & (size_ - 1))] = head == 0 ? 0 : place - head;
      head = place;
    }
  }

  // Calls visit(place) for the places with the hash of a length, the latest first, as long as it returns
  // true.
  template <typename Visit>
  void for_places(int64_t length, uint32_t hash, const Visit& visit) const {
    uint32_t place = heads_[length * size_ + (hash & (size_ - 1))];
    for (int64_t i = 0; i < kMaxVisited && place != 0 && visit(place); ++i) {
      const uint32_t link = links_[length * size_ + (place & (size_ - 1))];
      if (link == 0) return;
      place -= link;
    }
  }

 private:
  int64_t size_ = 0;
  ZeroPages<uint32_t> heads_, links_;
};

// Places in front of which a text has the same last tokens as a row, as many of them as anywhere.
struct SuffixMatches {
  uint32_t places[kMaxMatches];
  int64_t count, length;
};

// A text says
//   equal_before(place, end, most)  how many tokens before it equal those before `end`; -1 ends the search
//   after(place, i)                 the token i places behind, as if drafts stood behind it; -1 for none
template <typename Text>
SuffixMatches longest_matches(const SuffixIndex& index, const Text& text, const int32_t* end, int64_t known,
                              uint64_t seed) {
  const SuffixHashes hashes = hash_suffixes([end](int64_t i) { return end[-1 - i]; }, known, seed);
  SuffixMatches found{};
  for (int64_t i = hashes.count - 1; i >= 0 && found.count == 0; --i) {
    int64_t num_equal = 0;
    index.for_places(i, hashes.of[i], [&](uint32_t place) {
      const int64_t length = text.equal_before(place, end, known);
      if (length < kSuffixLengths[i]) return length >= 0;
      if (length > found.length) found.count = 0, found.length = length;
      if (length == found.length) found.places[found.count++] = place;
      return ++num_equal < kMaxMatches;
    });
  }
  return found;
}

struct SuffixRules {
  int64_t max_depth;  // tokens that are compared, and drafts
  double max_factor;  // drafts for each token that agrees
  double min_share;   // of the places, that are continued by the drafts so far
};

struct SuffixDrafts {
  int32_t tokens[kMaxSuffixDrafts];
  int64_t count;
  double expected;  // how many of them would count if the next text were one of those
  uint32_t place;   // one that goes on like this
};

// The token that most of the places go on with, the latest of equals; -1 for none.
inline int32_t most_frequent(const int32_t* tokens, int64_t count, int64_t* num_equal) {
  int32_t best = -1;
  *num_equal = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] < 0) continue;
    const int64_t equal = std::count(tokens + i, tokens + count, tokens[i]);
    // Counted again from a later one of its places, a token has fewer.
    if (equal > *num_equal) best = tokens[i], *num_equal = equal;
  }
  return best;
}

// What most of the places go on with, then most of those that went on so.
template <typename Text>
SuffixDrafts continue_matches(const Text& text, SuffixMatches matches, int64_t most,
                              const SuffixRules& rules) {
  SuffixDrafts drafts{};
  const double total = static_cast<double>(matches.count);
  most = std::min({most, kMaxSuffixDrafts, static_cast<int64_t>(rules.max_factor * matches.length)});
  while (drafts.count < most) {
    int32_t next[kMaxMatches];
    int64_t num_equal = 0;
    for (int64_t i = 0; i < matches.count; ++i)
      next[i] = text.after(matches.places[i], drafts.count, drafts.tokens);
    const int32_t token = most_frequent(next, matches.count, &num_equal);
    const double share = num_equal / total;
    if (token < 0 || share < rules.min_share) break;
    int64_t kept = 0;
    for (int64_t i = 0; i < matches.count; ++i)
      if (next[i] == token) matches.places[kept++] = matches.places[i];
    matches.count = kept;
    drafts.tokens[drafts.count++] = token;
    drafts.expected += share;
    drafts.place = matches.places[0];
  }
  return drafts;
}

}  // namespace splitserve
