// Keys and values of some tokens go into one KV head's part of a block, whose layout is described in
// cpu/attention_chunk.h; all units of it have 4 bytes: one float32 or a pair of bfloat16.
#pragma once

#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows of one head of successive tokens; `stride` from one to the next, in bytes.
struct TokenRows {
  const char* data;
  int64_t stride;
};

// The lanes of a's and b's lower, or upper, halves in turns.
SPLITSERVE_INLINE UintVec zip_low(UintVec a, UintVec b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

SPLITSERVE_INLINE UintVec zip_high(UintVec a, UintVec b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

SPLITSERVE_INLINE UintVec load_units(const char* p) {
  UintVec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

SPLITSERVE_INLINE void store_units(char* p, UintVec v) { std::memcpy(p, &v, sizeof v); }

// Unit i of row j becomes unit j of row i of `to`, for kLanes rows of as many units.
SPLITSERVE_INLINE void transpose_units(char* to, int64_t to_stride, TokenRows from) {
  UintVec a[kLanes], b[kLanes];
  for (int j = 0; j < kLanes; ++j) a[j] = load_units(from.data + j * from.stride);
  // Each round moves every unit's place one bit to the left within (row, lane); after as many rounds as a
  // lane has bits, row and lane have changed places.
  for (int round = 1; round < kLanes; round *= 2) {
    for (int j = 0; j < kLanes / 2; ++j) {
      b[2 * j] = zip_low(a[j], a[j + kLanes / 2]);
      b[2 * j + 1] = zip_high(a[j], a[j + kLanes / 2]);
    }
    for (int j = 0; j < kLanes; ++j) a[j] = b[j];
  }
  for (int i = 0; i < kLanes; ++i) store_units(to + i * to_stride, a[i]);
}

// `slots` is the first token's place in [units, block_size].
SPLITSERVE_INLINE void write_keys(char* slots, int64_t block_size, TokenRows keys, int64_t count,
                                  int64_t units) {
  int64_t j = 0;
  for (; units % kLanes == 0 && j + kLanes <= count; j += kLanes) {
    for (int64_t i = 0; i < units; i += kLanes) {
      transpose_units(slots + (i * block_size + j) * 4, block_size * 4,
                      {keys.data + j * keys.stride + i * 4, keys.stride});
    }
  }
  for (; j < count; ++j) {
    for (int64_t i = 0; i < units; ++i)
      std::memcpy(slots + (i * block_size + j) * 4, keys.data + j * keys.stride + i * 4, 4);
  }
}

// One token's value into its half of the units of a pair. Nothing else is written: another thread may be
// writing the other half.
SPLITSERVE_INLINE void write_half(char* units, int64_t half, const char* value, int64_t size) {
  int64_t i = 0;
#if defined(__AVX512BW__)
  for (; i + kLanes <= size; i += kLanes) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u*)(value + i * 2)));
    _mm512_mask_storeu_epi16(units + i * 4, half == 0 ? 0x55555555u : 0xaaaaaaaau,
                             half == 0 ? wide : _mm512_slli_epi32(wide, 16));
  }
#endif
  for (; i < size; ++i) std::memcpy(units + i * 4 + half * 2, value + i * 2, 2);
}

// Two tokens' values into the units of their pair.
SPLITSERVE_INLINE void write_pair(char* units, const BFloat16* first, const BFloat16* second, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    store_units(units + i * 4, as_uint(load(first + i)) >> 16 | as_uint(load(second + i)));
  for (; i < size; ++i) {
    std::memcpy(units + i * 4, first + i, 2);
    std::memcpy(units + i * 4 + 2, second + i, 2);
  }
}

// `block` is [block_size, size].
SPLITSERVE_INLINE void write_values(const float*, char* block, int64_t offset, TokenRows values,
                                    int64_t count, int64_t size) {
  for (int64_t j = 0; j < count; ++j) {
    std::memcpy(block + (offset + j) * size * 4, values.data + j * values.stride,
                static_cast<size_t>(size * 4));
  }
}

// `block` is [block_size / 2, size, 2].
SPLITSERVE_INLINE void write_values(const BFloat16*, char* block, int64_t offset, TokenRows values,
                                    int64_t count, int64_t size) {
  for (int64_t j = 0; j < count;) {
    char* units = block + (offset + j) / 2 * size * 4;
    const char* value = values.data + j * values.stride;
    if ((offset + j) % 2 == 0 && j + 1 < count) {
      write_pair(units, reinterpret_cast<const BFloat16*>(value),
                 reinterpret_cast<const BFloat16*>(value + values.stride), size);
      j += 2;
    } else {
      write_half(units, (offset + j) % 2, value, size);
      ++j;
    }
  }
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
