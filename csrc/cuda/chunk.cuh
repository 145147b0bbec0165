// 16 bytes of a row: what one thread loads and stores at once, and the unit in which rows are summed.
//
// A row that is not aligned is read element by element, but in the same chunks, so a result does not depend
// on where a row lies. Positions within a row are 32-bit.
#pragma once

#include <cuda_runtime.h>

#include "common/half.h"

namespace splitserve::cuda {

// Elements of a chunk.
template <typename T>
inline constexpr int kChunk = 16 / sizeof(T);

struct alignas(16) Chunk {
  uint32_t words[4];
};

template <typename T>
struct Floats {
  float values[kChunk<T>];
};

template <typename T>
__device__ inline T element(const Chunk& chunk, int i) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(chunk.words[i]);
  } else {
    return std::bit_cast<T>(static_cast<uint16_t>(chunk.words[i / 2] >> i % 2 * 16));
  }
}

template <typename T>
__device__ inline Floats<T> unpack(const Chunk& chunk) {
  Floats<T> result;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) result.values[i] = to_float(element<T>(chunk, i));
  return result;
}

template <typename T>
__device__ inline Chunk pack(const Floats<T>& x) {
  Chunk result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      result.words[i] = std::bit_cast<uint32_t>(x.values[i]);
    } else {
      result.words[i] = pack_pair<T>(x.values[2 * i], x.values[2 * i + 1]);
    }
  }
  return result;
}

// Loads the chunk that begins `begin` elements into a row of `size`; what lies past its end is 0.
template <bool kAligned, typename T>
__device__ inline Chunk load_chunk(const T* row, int begin, int size) {
  Chunk chunk{};
  if constexpr (kAligned) {
    if (begin < size) chunk = *reinterpret_cast<const Chunk*>(row + begin);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (begin + i >= size) continue;
      if constexpr (sizeof(T) == 4) {
        chunk.words[i] = std::bit_cast<uint32_t>(row[begin + i]);
      } else {
        chunk.words[i / 2] |= static_cast<uint32_t>(std::bit_cast<uint16_t>(row[begin + i])) << i % 2 * 16;
      }
    }
  }
  return chunk;
}

// Stores the part of a chunk that lies within a row of `size`.
template <bool kAligned, typename T>
__device__ inline void store_chunk(T* row, int begin, int size, const Chunk& chunk) {
  if constexpr (kAligned) {
    if (begin < size) *reinterpret_cast<Chunk*>(row + begin) = chunk;
  } else {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (begin + i < size) row[begin + i] = element<T>(chunk, i);
    }
  }
}

// Gathers whether rows can be read in whole aligned chunks: every pointer and stride of a call, in bytes.
class Alignment {
 public:
  Alignment& add(const void* data) { return add_bytes(reinterpret_cast<intptr_t>(data)); }
  Alignment& add_bytes(int64_t bytes) {
    bits_ |= bytes;
    return *this;
  }
  bool is_aligned() const { return bits_ % 16 == 0; }

 private:
  int64_t bits_ = 0;
};

}  // namespace splitserve::cuda
