// bfloat16 as a storage type: the upper half of a float.
#pragma once

#include <cstdint>
#include <cstring>

namespace splitserve {

struct BFloat16 {
  uint16_t bits;
};
static_assert(sizeof(BFloat16) == 2);

}  // namespace splitserve
