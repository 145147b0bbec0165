// Finds where a UTF-8 character ends, and which bytes are invalid.
#pragma once

#include <cstddef>
#include <cstdint>

namespace splitserve::frontend {

enum class Utf8 { kCharacter, kInvalid, kUnfinished };

struct Utf8Run {
  Utf8 kind;
  size_t size;  // bytes of the character, of its beginning, or of what can begin none
};

// Reads what begins at data[0], size > 0. The rules are table 3-7 of the Unicode Standard; of what is invalid
// the longest part that could begin a character counts as one ("maximal subpart", section 3.9), as in
// Python's decoder.
inline Utf8Run read_utf8(const uint8_t* data, size_t size) {
  const uint8_t lead = data[0];
  if (lead < 0x80) return {Utf8::kCharacter, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8::kInvalid, 1};
  // No surrogate is a character, but of this one half Python's incremental decoder waits to see the whole.
  if (lead == 0xED && size == 2 && data[1] >= 0xA0 && data[1] <= 0xBF) return {Utf8::kUnfinished, 2};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == size) return {Utf8::kUnfinished, i};
    if (data[i] < low || data[i] > high) return {Utf8::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8::kCharacter, length};
}

}  // namespace splitserve::frontend
