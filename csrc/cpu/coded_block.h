// Keys and values of some tokens go as codes into one KV head's part of a block, whose layout is described in
// cpu/attention_chunk.h. Only the bytes of these tokens are written: another thread may be writing those
// beside.
#pragma once

#include "cpu/cache_codes.h"
#include "cpu/kv_block.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// One token's place in a block of one head: [tokens, row], row bytes each.
struct CodeRow {
  uint8_t* block;
  int64_t tokens, row, offset;
};

// Two of a key's bytes lie side by side.
struct KeyBytes {
  SPLITSERVE_INLINE static void put(const CodeRow& to, int64_t first, const uint8_t* bytes, int64_t count) {
    for (int64_t i = 0; i < count; i += 2)
      std::memcpy(to.block + (first + i) * to.tokens + to.offset * 2, bytes + i, 2);
  }
};

// Every other byte of a pair of tokens.
struct ValueBytes {
  SPLITSERVE_INLINE static void put(const CodeRow& to, int64_t first, const uint8_t* bytes, int64_t count) {
    uint8_t* pair = to.block + (to.offset / 2 * to.row + first) * 2;
    const bool is_second = to.offset % 2 != 0;
    int64_t i = 0;
#if defined(__AVX512BW__)
    for (; i + kLanes <= count; i += kLanes) {
      const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)(bytes + i)));
      _mm256_mask_storeu_epi8(pair + i * 2, is_second ? 0xaaaaaaaau : 0x55555555u,
                              is_second ? _mm256_slli_epi16(wide, 8) : wide);
    }
#endif
    for (; i < count; ++i) pair[i * 2 + is_second] = bytes[i];
  }
};

// `Bytes` is one of these.
template <typename Codes, typename Bytes>
SPLITSERVE_INLINE void write_code_row(const CodeRow& to, const BFloat16* numbers) {
  const int64_t size = to.row - scale_bytes(Codes::kFormat);
  const Codes coder(numbers, size);
  for (int64_t d = 0; d < size; d += kLanes) {
    const ByteVec codes = to_bytes(coder.encode(load_up_to(numbers + d, size - d)));
    uint8_t bytes[kLanes];
    std::memcpy(bytes, &codes, sizeof bytes);
    Bytes::put(to, d, bytes, size - d < kLanes ? size - d : kLanes);
  }
  if constexpr (scale_bytes(Codes::kFormat) > 0) {
    const BFloat16 scale = coder.scale();
    uint8_t bytes[sizeof scale];
    std::memcpy(bytes, &scale, sizeof scale);
    Bytes::put(to, size, bytes, sizeof scale);
  }
}

// `to` is the place of the first of `count` tokens.
template <typename Codes, typename Bytes>
SPLITSERVE_INLINE void write_code_rows(CodeRow to, TokenRows rows, int64_t count) {
  for (int64_t j = 0; j < count; ++j, ++to.offset)
    write_code_row<Codes, Bytes>(to, reinterpret_cast<const BFloat16*>(rows.data + j * rows.stride));
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
