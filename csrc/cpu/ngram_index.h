// Where in a text did its last few tokens, or those of another text, occur before?
//
// The index holds n-grams of min_ngram tokens: heads[hash] is the place behind the latest one with that hash,
// links[place] that behind the one before it. It grows with the text and never shrinks.
#pragma once

#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <cstdint>

#include "cpu/columns.h"

namespace splitserve {

// Earlier places that are looked at per lookup, the latest first.
constexpr int64_t kMaxPlaces = 32;

struct NgramLengths {
  int64_t shortest, longest;
};

// Tokens before `a` and before `b` that are equal, at most `most`.
inline int64_t equal_before(const int32_t* a, const int32_t* b, int64_t most) {
  int64_t count = 0;
  while (count < most && a[-1 - count] == b[-1 - count]) ++count;
  return count;
}

struct NgramIndex {
  const int32_t* tokens;
  int32_t *heads, *links, *num_indexed;
  int64_t num_heads;  // a power of two
  NgramLengths lengths;

  int64_t hash_before(const int32_t* end) const {
    uint64_t hash = 0;
    for (const int32_t* token = end - lengths.shortest; token < end; ++token)
      hash = (hash ^ static_cast<uint32_t>(*token)) * 0x9E3779B97F4A7C15u;
    return static_cast<int64_t>(hash >> 32) & (num_heads - 1);
  }

  // Enters the n-grams that end before `end`.
  void grow(int64_t end) const {
    int64_t place = *num_indexed;
    if (place == 0) std::fill(heads, heads + num_heads, 0);
    for (place = std::max(place, lengths.shortest); place < end; ++place) {
      int32_t& head = heads[hash_before(tokens + place)];
      links[place] = head;
      head = static_cast<int32_t>(place);
    }
    *num_indexed = static_cast<int32_t>(std::max(place, int64_t{1}));
  }

  // The place behind the longest n-gram that the `known` tokens before `end`, of any text, end with, if it is
  // longer than `longest`; the latest of equals, 0 if there is none.
  int64_t find(const int32_t* end, int64_t known, int64_t longest = 0) const {
    if (known < lengths.shortest) return 0;
    longest = std::max(longest, lengths.shortest - 1);
    int64_t best = 0, place = heads[hash_before(end)];
    for (int64_t i = 0; i < kMaxPlaces && place > 0 && longest < lengths.longest; ++i, place = links[place]) {
      const int64_t most = std::min({lengths.longest, known, place});
      const int64_t length = equal_before(tokens + place, end, most);
      if (length > longest) {
        longest = length;
        best = place;
      }
    }
    return best;
  }
};

// The shortest and the longest n-gram, as Python says it.
inline NgramLengths lengths_arg(const tvm::ffi::Array<int64_t>& lengths) {
  SPLITSERVE_CHECK_VALUE(lengths.size() == 2, "lengths: expected 2, got " << lengths.size());
  const NgramLengths found{lengths[0], lengths[1]};
  SPLITSERVE_CHECK_VALUE(1 <= found.shortest && found.shortest <= found.longest,
                         "lengths: n-grams of " << found.shortest << " to " << found.longest << " tokens");
  return found;
}

inline void check_index(const Table& heads, const Table& links, const Table& tokens) {
  SPLITSERVE_CHECK_VALUE(heads.columns > 0 && (heads.columns & (heads.columns - 1)) == 0,
                         "heads: expected a power of two per row, got " << heads.columns);
  SPLITSERVE_CHECK_VALUE(links.columns >= tokens.columns,
                         "links: expected " << tokens.columns << " per row, got " << links.columns);
}

}  // namespace splitserve
