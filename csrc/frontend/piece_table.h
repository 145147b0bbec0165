// Which bytes a token id stands for; asked for when an id is met first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace splitserve::frontend {

class PieceTable {
 public:
  // Calls set() for an id, or leaves it to have no text.
  using Fill = void (*)(int32_t token_id);

  // Knows the ids below limit; all others have no text.
  PieceTable(int32_t limit, Fill fill) : places_(static_cast<size_t>(limit)), fill_(fill) {}

  void set(int32_t token_id, const char* data, int32_t size) {
    places_[static_cast<size_t>(token_id)] = {static_cast<uint32_t>(bytes_.size()), size};
    bytes_.append(data, static_cast<size_t>(size));
  }

  void append_to(std::string& out, int32_t token_id) {
    if (token_id < 0 || static_cast<size_t>(token_id) >= places_.size()) return;
    Place& place = places_[static_cast<size_t>(token_id)];
    if (place.size == kUnknown) {
      place.size = 0;
      fill_(token_id);
    }
    out.append(bytes_, place.begin, static_cast<size_t>(place.size));
  }

 private:
  static constexpr int32_t kUnknown = -1;

  struct Place {
    uint32_t begin = 0;
    int32_t size = kUnknown;
  };

  std::vector<Place> places_;
  std::string bytes_;
  Fill fill_;
};

}  // namespace splitserve::frontend
