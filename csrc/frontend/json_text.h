// The bytes of tokens as the inside of a JSON string: characters that tokens cut in two are held back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace splitserve::frontend {

// The end of a text that may still become a character.
struct HeldBytes {
  uint8_t data[3];
  uint8_t size = 0;
};

// Appends bytes as text to out, escaped for JSON as msgspec does; what was held goes before them, and `held`
// gets the unfinished character at their end. Undecodable bytes become U+FFFD: one for each byte if
// replace_each_byte is set, else one for each maximal subpart. Returns whether any character was appended.
bool append_json_text(std::string& out, HeldBytes& held, std::string& bytes, bool replace_each_byte);

}  // namespace splitserve::frontend
