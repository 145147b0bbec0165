// How cache lines of weights are asked for before they are used.
#pragma once

#include <cstdint>

#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {

inline constexpr int64_t kFetchedLineBytes = 64;
// How far ahead a stream of weights that is read once is fetched into the L1 cache, and as far again into the
// L2 cache. Processors follow a stream by themselves as far as the end of its page of 4 KiB: a line in their
// reach takes a place for misses for a short time only, and the one far ahead makes them begin the next page.
inline constexpr int64_t kStreamAheadBytes = 2048;

SPLITSERVE_INLINE void fetch_to_l2(const char* line) {
  constexpr int kToL2 = 2;
  __builtin_prefetch(line, 0, kToL2);
}

// `line` is kStreamAheadBytes ahead of the one in use.
template <int64_t kFartherBytes = kStreamAheadBytes>
SPLITSERVE_INLINE void fetch_stream(const char* line) {
  __builtin_prefetch(line);
  fetch_to_l2(line + kFartherBytes);
}

// What a tile fetches per unit of its format: of its own stream, or of a panel that comes later.
struct Fetched {
  int lines;
  bool is_stream;
  int64_t farther_bytes = kStreamAheadBytes;  // of a stream, for the L2 cache

  constexpr Fetched of(int other_lines) const { return {other_lines, is_stream, farther_bytes}; }
};

// The lines for unit `unit` of a walk over a panel, from `ahead` on.
template <Fetched kFetched>
SPLITSERVE_INLINE void fetch(const char* ahead, int64_t unit) {
#pragma GCC unroll 16
  for (int line = 0; line < kFetched.lines; ++line) {
    const char* const at = ahead + (unit * kFetched.lines + line) * kFetchedLineBytes;
    kFetched.is_stream ? fetch_stream<kFetched.farther_bytes>(at) : __builtin_prefetch(at);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
