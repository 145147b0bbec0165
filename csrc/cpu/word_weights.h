// Codes of weights as the unsigned bytes that words are multiplied with: one struct per format.
//
// load<kPlace>() has the bytes of four inputs, "quads", of two registers of outputs, from where the codes of
// a group begin: quad `quad`, which is the first, second ... of kBlockQuads, whose codes are kBlockBytes.
// zero() is what every byte is too large by.
#pragma once

#include <bit>

#include "cpu/linear.h"
#include "cpu/weight_formats.h"
#include "cpu/word_dot.h"

#if defined(SPLITSERVE_MULTIPLIES_WORDS)

namespace splitserve::SPLITSERVE_ISA {

inline constexpr int64_t kQuadDepth = 4;
// Of a quad of codes of 8 bits in a panel, and of two of 4 bits.
inline constexpr int64_t kQuadBytes = kPanelCols * kQuadDepth;
inline constexpr int kPairVecs = 2;
inline constexpr int kVecPairs = kPanelVecs / kPairVecs;

SPLITSERVE_INLINE UintVec load_bytes(const char* p) {
  UintVec bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

// Two steps of pairs become one of fours.
struct Int8Quads {
  static constexpr bool kHasNibbles = false;
  static constexpr int kBlockQuads = 2;
  static constexpr int64_t kBlockBytes = 2 * kQuadBytes;
  template <int kPlace>
  SPLITSERVE_INLINE static void load(const char* codes, int64_t quad, [[maybe_unused]] int pair,
                                     UintVec (&bytes)[kPairVecs]) {
    const char* const first = codes + quad * kQuadBytes;
    const char* const second = first + kQuadBytes / 2;
#if defined(__AVX512F__)
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i a = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(first));
    const __m512i b = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(second));
    bytes[0] = reinterpret_cast<UintVec>(_mm512_unpacklo_epi16(a, b)) ^ 0x80808080u;
    bytes[1] = reinterpret_cast<UintVec>(_mm512_unpackhi_epi16(a, b)) ^ 0x80808080u;
#else
    const auto ordered = [pair](const char* p) __attribute__((always_inline)) {
      return _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(
                                          p + pair * static_cast<int64_t>(sizeof(Vec)))),
                                      0b11011000);
    };
    const __m256i a = ordered(first), b = ordered(second);
    bytes[0] = reinterpret_cast<UintVec>(_mm256_unpacklo_epi16(a, b)) ^ 0x80808080u;
    bytes[1] = reinterpret_cast<UintVec>(_mm256_unpackhi_epi16(a, b)) ^ 0x80808080u;
#endif
  }
};

// kFlip: the sign bit of codes in two's complement, which makes them too large by zero(); 0 for others.
template <uint32_t kFlip>
struct NibbleQuads {
  static constexpr bool kHasNibbles = true;
  static constexpr int kBlockQuads = 2;
  static constexpr int64_t kBlockBytes = kQuadBytes;
  template <int kPlace>
  SPLITSERVE_INLINE static void load(const char* codes, int64_t quad, int pair, UintVec (&bytes)[kPairVecs]) {
    const char* const block = codes + quad / 2 * kQuadBytes;
#pragma GCC unroll 2
    for (int v = 0; v < kPairVecs; ++v)
      bytes[v] = nibbles<kPlace>(block + (pair * kPairVecs + v) * static_cast<int64_t>(sizeof(Vec)));
  }
  template <int kParity>
  SPLITSERVE_INLINE static UintVec nibbles(const char* p) {
    return ((load_bytes(p) >> (4 * kParity)) & 0x0f0f0f0fu) ^ kFlip;
  }
};

// Half a unit at a time.
struct SixBitQuads {
  static constexpr bool kHasNibbles = true;
  static constexpr int kBlockQuads = 4;
  static constexpr int64_t kBlockBytes = kInt6HalfBytes;
  template <int kPlace>
  SPLITSERVE_INLINE static void load(const char* codes, int64_t quad, int pair, UintVec (&bytes)[kPairVecs]) {
    const char* const half = codes + quad / kBlockQuads * kBlockBytes;
#pragma GCC unroll 2
    for (int v = 0; v < kPairVecs; ++v) {
      const int64_t place = (pair * kPairVecs + v) * static_cast<int64_t>(sizeof(Vec));
      const UintVec lower = NibbleQuads<0>::nibbles<kPlace % 2>(half + kPlace / 2 * kQuadBytes + place),
                    upper = load_bytes(half + kInt6UpperOffset + place);
      bytes[v] = joined(lower, moved_left(upper, 4 - 2 * kPlace));
    }
  }

 private:
  SPLITSERVE_INLINE static UintVec joined(UintVec lower, UintVec upper) {
#if defined(__AVX512F__)
    constexpr int kBothOrThird = 0xea;
    const __m512i mask = _mm512_set1_epi8(0x30);
    return reinterpret_cast<UintVec>(_mm512_ternarylogic_epi32(
        reinterpret_cast<__m512i>(upper), mask, reinterpret_cast<__m512i>(lower), kBothOrThird));
#else
    return lower | (upper & 0x30303030u);
#endif
  }
};

// The format with how its panels are multiplied with words.
template <typename Quads, typename WordDotKind, WeightFormat format>
struct WordWeights : Quads {
  using X = BFloat16;
  using Dot = WordDotKind;
  static constexpr WeightFormat kFormat = format;
  static constexpr bool kHasUnits = false;
  static uint32_t word_bits(const LinearParams&) { return kLongestWord; }
};

// One scale per output; blocks are as long as sums stay exact.
template <typename Dot>
struct Int8Words : WordWeights<Int8Quads, Dot, WeightFormat::kInt8> {
  static int32_t zero(const LinearParams&) { return 128; }
  static constexpr int64_t kScaleBytes = 0;
  static int64_t block_depth(const LinearParams&) { return kLargestGroup; }
};

// Scales beside them.
template <typename Dot>
struct Int8GroupWords : WordWeights<Int8Quads, Dot, WeightFormat::kInt8Groups> {
  static int32_t zero(const LinearParams&) { return 128; }
  static constexpr int64_t kScaleBytes = 0;
  static int64_t block_depth(const LinearParams& p) { return p.groups.depth; }
};

// Codes from 0 to 15.
template <typename Dot>
struct Int4GroupWords : WordWeights<NibbleQuads<0>, Dot, WeightFormat::kInt4Groups> {
  static int32_t zero(const LinearParams& p) { return p.groups.has_offsets ? 0 : kInt4Zero; }
  static constexpr int64_t kScaleBytes = 0;
  static int64_t block_depth(const LinearParams& p) { return p.groups.depth; }
};

// Codes from 0 to 63.
template <typename Dot>
struct Int6GroupWords : WordWeights<SixBitQuads, Dot, WeightFormat::kInt6Groups> {
  static int32_t zero(const LinearParams& p) { return p.groups.has_offsets ? 0 : kInt6Zero; }
  static constexpr int64_t kScaleBytes = 0;
  static int64_t block_depth(const LinearParams& p) { return p.groups.depth; }
};

// The same of 4 or 6 bits with scales in units (GroupScales::are_bytes): a code times its group's scale is an
// integer of 16 bits, and words have as many bits as leave the sum of a block of such products exact, at
// least 12 in groups of up to 64.
template <typename GroupWords, uint32_t kCodeBits>
struct UnitWords : GroupWords {
  static constexpr bool kHasUnits = true;
  static int64_t block_depth(const LinearParams& p) {
    const bool is_half = kCodeBits > 4 && p.groups.has_offsets && p.groups.depth < kStretchInputs;
    return is_half ? kStretchInputs / 2 : kStretchInputs;
  }
  static uint32_t word_bits(const LinearParams& p) {
    constexpr uint32_t kSumBits = 31, kScaleBits = 7;
    const uint32_t input_bits = std::countr_zero(static_cast<uint64_t>(block_depth(p)));
    // Codes less their zero are signed.
    return kSumBits - kScaleBits - input_bits - (p.groups.has_offsets ? kCodeBits : kCodeBits - 1);
  }
};
template <typename Dot>
using Int4UnitWords = UnitWords<Int4GroupWords<Dot>, 4>;
template <typename Dot>
using Int6UnitWords = UnitWords<Int6GroupWords<Dot>, 6>;

// Scales before the codes of each group.
template <typename Dot>
struct Int4Words : WordWeights<NibbleQuads<0x08080808u>, Dot, WeightFormat::kInt4> {
  static int32_t zero(const LinearParams&) { return kInt4Zero; }
  static constexpr int64_t kScaleBytes = kInt4ScaleBytes;
  static int64_t block_depth(const LinearParams&) { return kGroupDepth; }
  SPLITSERVE_INLINE static Vec scale(const char* group, int vec) { return Int4Codes::scale(group, vec); }
};

// Twice the numbers, which are integers, plus 12.
template <typename Dot>
struct Mxfp4Words : WordWeights<NibbleQuads<0>, Dot, WeightFormat::kMxfp4> {
  static int32_t zero(const LinearParams&) { return 12; }
  static constexpr int64_t kScaleBytes = kMxfp4ScaleBytes;
  static int64_t block_depth(const LinearParams&) { return kGroupDepth; }
  SPLITSERVE_INLINE static Vec scale(const char* group, int vec) {
    return Mxfp4Codes::scale(group, vec) * 0.5f;
  }
  template <int kPlace>
  SPLITSERVE_INLINE static void load(const char* codes, int64_t quad, int pair, UintVec (&bytes)[kPairVecs]) {
    NibbleQuads<0>::load<kPlace>(codes, quad, pair, bytes);
    const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    for (UintVec& own : bytes) {
#if defined(__AVX512F__)
      own = reinterpret_cast<UintVec>(
          _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), reinterpret_cast<__m512i>(own)));
#else
      own = reinterpret_cast<UintVec>(
          _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), reinterpret_cast<__m256i>(own)));
#endif
    }
  }
};

}  // namespace splitserve::SPLITSERVE_ISA

#endif
