// Codes of 8 bits in which the cache keeps numbers: how they are made of a row, and how they become bfloat16,
// exactly. The highest bit is the sign, the others are a magnitude.
#pragma once

#include "common/cache_format.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

inline constexpr uint32_t kCodeSign = 128, kCodeMagnitude = 127;
inline constexpr uint32_t kFloatNan = 0x7fc00000u, kFloatInfinity = 0x7f800000u;

SPLITSERVE_INLINE ByteVec to_bytes(UintVec v) {
#if defined(__AVX512F__)
  return reinterpret_cast<ByteVec>(_mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v)));
#else
  return __builtin_convertvector(v, ByteVec);
#endif
}

SPLITSERVE_INLINE Vec magnitude_of(Vec x) { return as_float(as_uint(x) & 0x7fffffffu); }
SPLITSERVE_INLINE UintVec code_sign_of(Vec x) { return as_uint(x) >> 24 & kCodeSign; }
SPLITSERVE_INLINE Vec to_float(UintVec small) {
  return __builtin_convertvector(reinterpret_cast<IntVec>(small), Vec);
}

// Integers, of which each row has as large a unit as it needs: its scale, the least bfloat16 with which no
// number is above 127 of it. A row with a NaN or an infinity has the scale NaN.
class Int8Codes {
 public:
  static constexpr CacheFormat kFormat = CacheFormat::kInt8;

  Int8Codes(const BFloat16* row, int64_t size) {
    // Among floats without a sign, those of more are those of greater bits, NaN the greatest.
    UintVec highest{};
    for (int64_t i = 0; i < size; i += kLanes) {
      const UintVec bits = as_uint(magnitude_of(load_up_to(row + i, size - i)));
      highest = bits > highest ? bits : highest;
    }
    uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits = highest[i] > bits ? highest[i] : bits;
    set_scale(bits);
  }

  // Of a number of the row.
  SPLITSERVE_INLINE UintVec encode(Vec x) const {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
    const Vec units = magnitude_of(x) * inverse + kRound;
    return (as_uint(units) & kCodeMagnitude) | code_sign_of(x);
  }

  BFloat16 scale() const { return {static_cast<uint16_t>(scale_bits >> 16)}; }

  static constexpr uint32_t bfloat16_of(uint32_t magnitude) {
    if (magnitude == 0) return 0;
    uint32_t exponent = 0;
    while (magnitude >> exponent > 1) ++exponent;
    return (127 + exponent) << 7 | (magnitude << (7 - exponent) & 127);
  }

  SPLITSERVE_INLINE static Vec number(UintVec code) {
    return as_float(as_uint(to_float(code & kCodeMagnitude)) | (code & kCodeSign) << 24);
  }

 private:
  // Of the row's greatest magnitude. What lies below 2^-100 is made zero.
  void set_scale(uint32_t greatest) {
    constexpr uint32_t kLeast = (127 - 100) << 23;
    scale_bits = greatest >= kFloatInfinity ? kFloatNan : 0, inverse = 0;
    if (greatest < kLeast || greatest >= kFloatInfinity) return;
    float scale;
    std::memcpy(&scale, &greatest, sizeof scale);
    scale /= 127.0f;
    std::memcpy(&scale_bits, &scale, sizeof scale);
    scale_bits = (scale_bits + 0xffffu) & 0xffff0000u;
    std::memcpy(&scale, &scale_bits, sizeof scale);
    inverse = 1.0f / scale;
  }

  uint32_t scale_bits;
  float inverse;
};

// E4M3: what is greater than 448 becomes that, a NaN stays one.
class Fp8Codes {
 public:
  static constexpr CacheFormat kFormat = CacheFormat::kFp8;

  Fp8Codes(const BFloat16*, int64_t) {}

  SPLITSERVE_INLINE UintVec encode(Vec x) const {
    constexpr float kGreatest = 448.0f, kLeastNormal = 0.015625f;
    constexpr float kRoundSmall = 16384.0f;  // 2^14: adding it leaves multiples of 2^-9 in the low bits
    const Vec magnitude = min(magnitude_of(x), broadcast(kGreatest));
    const UintVec bits = as_uint(magnitude);
    const UintVec normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (kExponentOffset << 3);
    const UintVec small = as_uint(magnitude + kRoundSmall) & 15u;
    const UintVec code = magnitude < broadcast(kLeastNormal) ? small : normal;
    return (x == x ? code : UintVec{} + kNan) | code_sign_of(x);
  }

  static constexpr uint32_t bfloat16_of(uint32_t magnitude) {
    if (magnitude == kNan) return kFloatNan >> 16;
    if (magnitude >= 8) return (magnitude << 4) + (kExponentOffset << 7);
    // Denormals, of which bfloat16 has none so large: multiples of 2^-9.
    const uint32_t bits = Int8Codes::bfloat16_of(magnitude);
    return bits == 0 ? 0 : bits - (9 << 7);
  }

  SPLITSERVE_INLINE static Vec number(UintVec code) {
    const UintVec magnitude = code & kCodeMagnitude;
    const UintVec normal = (magnitude << 20) + (kExponentOffset << 23);
    const UintVec small = as_uint(to_float(magnitude) * 0.001953125f);
    UintVec bits = magnitude < 8u ? small : normal;
    bits = magnitude == kNan ? UintVec{} + kFloatNan : bits;
    return as_float(bits | (code & kCodeSign) << 24);
  }

 private:
  static constexpr uint32_t kNan = 127, kExponentOffset = 127 - 7;
};

// In place of codes where the cache holds activations as they are.
struct NoCodes {
  static constexpr CacheFormat kFormat = CacheFormat::kPlain;
};

#if defined(__AVX512BF16__)
// The bytes of the bfloat16 of all magnitudes.
template <typename Codes>
struct CodeBytes {
  alignas(64) uint8_t low[128], high[128];
  constexpr CodeBytes() : low{}, high{} {
    for (uint32_t magnitude = 0; magnitude < 128; ++magnitude) {
      low[magnitude] = static_cast<uint8_t>(Codes::bfloat16_of(magnitude));
      high[magnitude] = static_cast<uint8_t>(Codes::bfloat16_of(magnitude) >> 8);
    }
  }
};
template <typename Codes>
constexpr CodeBytes<Codes> kCodeBytes;

struct Halves {
  __m512i first, second;
};

// The bfloat16 of 64 codes, in order. A look-up takes the lowest 7 bits as index.
template <typename Codes>
SPLITSERVE_INLINE Halves decode_64(__m512i codes) {
  constexpr int kFirstOrBothOthers = 0xf8;
  const auto& [low_bytes, high_bytes] = kCodeBytes<Codes>;
  // What is unpacked are the lower and upper eights of each sixteen.
  codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
  const __m512i low =
      _mm512_permutex2var_epi8(_mm512_load_si512(low_bytes), codes, _mm512_load_si512(low_bytes + 64));
  const __m512i magnitudes =
      _mm512_permutex2var_epi8(_mm512_load_si512(high_bytes), codes, _mm512_load_si512(high_bytes + 64));
  const __m512i high =
      _mm512_ternarylogic_epi32(magnitudes, codes, _mm512_set1_epi8(-128), kFirstOrBothOthers);
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

// Two runs of 32 codes.
template <typename Codes>
SPLITSERVE_INLINE void decode_two(const uint8_t* first, const uint8_t* second, BFloat16* to_first,
                                  BFloat16* to_second) {
  const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)first));
  const Halves halves =
      decode_64<Codes>(_mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i*)second), 1));
  _mm512_storeu_si512(to_first, halves.first);
  _mm512_storeu_si512(to_second, halves.second);
}
#endif

// The bfloat16 of `count` codes.
template <typename Codes>
SPLITSERVE_INLINE void decode(const uint8_t* from, BFloat16* to, int64_t count) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  for (; i + 64 <= count; i += 64) {
    const Halves halves = decode_64<Codes>(_mm512_loadu_si512(from + i));
    _mm512_storeu_si512(to + i, halves.first);
    _mm512_storeu_si512(to + i + 32, halves.second);
  }
  if (i == count) return;
  const uint64_t there = (uint64_t{1} << (count - i)) - 1;
  const Halves halves = decode_64<Codes>(_mm512_maskz_loadu_epi8(there, from + i));
  _mm512_mask_storeu_epi16(to + i, static_cast<__mmask32>(there), halves.first);
  _mm512_mask_storeu_epi16(to + i + 32, static_cast<__mmask32>(there >> 32), halves.second);
#else
  // Exact, so that it is the upper half of a float.
  for (; i + kLanes <= count; i += kLanes) {
    const HalfVec halves =
        __builtin_convertvector(as_uint(Codes::number(load_wide(from + i))) >> 16, HalfVec);
    std::memcpy(to + i, &halves, sizeof halves);
  }
  if (i == count) return;
  alignas(16) uint8_t rest[kLanes] = {};
  for (int64_t j = i; j < count; ++j) rest[j - i] = from[j];
  const UintVec bits = as_uint(Codes::number(load_wide(rest)));
  for (int64_t j = i; j < count; ++j) to[j] = {static_cast<uint16_t>(bits[j - i] >> 16)};
#endif
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
