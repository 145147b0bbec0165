#include "frontend/json_text.h"

#include <cstring>

#include "frontend/utf8.h"

namespace splitserve::frontend {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";
constexpr char kHex[] = "0123456789abcdef";

void append_control(std::string& out, uint8_t byte) {
  switch (byte) {
    case '\b':
      out += "\\b";
      break;
    case '\t':
      out += "\\t";
      break;
    case '\n':
      out += "\\n";
      break;
    case '\f':
      out += "\\f";
      break;
    case '\r':
      out += "\\r";
      break;
    default:
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
  }
}

void append_ascii(std::string& out, uint8_t byte) {
  if (byte < 0x20) {
    append_control(out, byte);
    return;
  }
  if (byte == '"' || byte == '\\') out += '\\';
  out += static_cast<char>(byte);
}

}  // namespace

bool append_json_text(std::string& out, HeldBytes& held, std::string& bytes, bool replace_each_byte) {
  if (held.size) bytes.insert(0, reinterpret_cast<const char*>(held.data), held.size);
  held.size = 0;
  const size_t before = out.size();
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Run run = read_utf8(data + i, bytes.size() - i);
    if (run.kind == Utf8::kUnfinished) {
      held.size = static_cast<uint8_t>(run.size);
      std::memcpy(held.data, data + i, run.size);
    } else if (run.kind == Utf8::kInvalid) {
      for (size_t k = 0; k < (replace_each_byte ? run.size : 1); ++k) out += kReplacement;
    } else if (run.size == 1) {
      append_ascii(out, data[i]);
    } else {
      out.append(bytes, i, run.size);
    }
    i += run.size;
  }
  return out.size() != before;
}

}  // namespace splitserve::frontend
