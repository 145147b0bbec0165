// In which form the paged cache keeps keys and values.
#pragma once

#include <cstdint>

namespace splitserve {

// kPlain: elements of the activations' type. Else a code of 8 bits per element: kInt8, integers from -127 to
// 127 as sign and magnitude, with a bfloat16 scale for each token and head; kFp8, E4M3.
enum class CacheFormat { kPlain, kInt8, kFp8 };

// Bytes of a scale, which follow the codes of a token and head.
inline constexpr int64_t kMaxScaleBytes = 2;

inline constexpr int64_t scale_bytes(CacheFormat format) {
  return format == CacheFormat::kInt8 ? kMaxScaleBytes : 0;
}

}  // namespace splitserve
