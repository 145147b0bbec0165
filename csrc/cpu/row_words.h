// Rows of activations as integers of 16 bits, "words": multiples of a power of two for each block of inputs.
//
// A block's power is such that its largest number fits, and a bfloat16 no smaller than a 64th of that number
// is a word exactly; smaller ones are rounded to nearest, ties to even, by a 32,640th of it at most. Beside
// scales in units words are as much shorter as products with code times scale are longer (UnitWords).
//
// Or as bytes (LinearParams::takes_bytes): multiples of a block's largest magnitude over 127, rounded
// likewise.
#pragma once

#include <bit>
#include <type_traits>

#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/word_dot.h"

#if defined(SPLITSERVE_MULTIPLIES_WORDS)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Numbers that become words at once.
inline constexpr int64_t kWordsAtOnce = 16;
static_assert(kSmallestGroup % kWordsAtOnce == 0);

// Words as they are multiplied, from those of 16 neighbours: see Dot.
template <bool kHasNibbles, bool kIsPairs>
SPLITSERVE_INLINE __m256i arranged(__m256i words) {
  if constexpr (kIsPairs) {
    const __m128i order = kHasNibbles ? _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
                                      : _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    return _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(order));
  } else {
    const __m256i high = _mm256_srai_epi16(_mm256_add_epi16(words, _mm256_set1_epi16(128)), 8);
    const __m256i low = _mm256_sub_epi16(words, _mm256_slli_epi16(high, 8));
    const __m128i order = kHasNibbles ? _mm_setr_epi8(0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15)
                                      : _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
    return _mm256_shuffle_epi8(_mm256_packs_epi16(high, low), _mm256_broadcastsi128_si256(order));
  }
}

// The bits of the largest magnitude among bfloat16, which are in the order of the magnitudes.
SPLITSERVE_INLINE uint32_t largest_bits(const BFloat16* x, int64_t depth) {
  __m256i largest = _mm256_setzero_si256();
  for (int64_t k = 0; k < depth; k += kWordsAtOnce) {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(x + k));
    largest = _mm256_max_epu16(largest, _mm256_and_si256(numbers, _mm256_set1_epi16(0x7fff)));
  }
  const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return static_cast<uint32_t>(_mm_extract_epi16(least, 0)) ^ 0xffff;
}

SPLITSERVE_INLINE float power_of_two(uint32_t biased_exponent) {
  const uint32_t bits = biased_exponent << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

// 16 of them.
#if defined(__AVX512F__)
SPLITSERVE_INLINE __m256i words_of(const BFloat16* x, Vec factor) {
  return _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(reinterpret_cast<__m512>(load(x) * factor)));
}
#else
SPLITSERVE_INLINE __m256i words_of(const BFloat16* x, Vec factor) {
  const auto half = [factor](const BFloat16* numbers) __attribute__((always_inline)) {
    return _mm256_cvtps_epi32(reinterpret_cast<__m256>(load(numbers) * factor));
  };
  // What is packed takes turns, 8 bytes of each.
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(half(x), half(x + kWordsAtOnce / 2)), 0b11011000);
}
#endif

// The sum of 16 words, as those of pairs.
SPLITSERVE_INLINE __m256i sums_of_pairs(__m256i words) {
  return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}

SPLITSERVE_INLINE int32_t sum_of(__m256i sums) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0b01001110));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0b10110001)));
}

// kCount times 16 words, up to four, and the sum of each.
template <bool kHasNibbles, bool kIsPairs, int kCount>
SPLITSERVE_INLINE void make_few_words(char* words, int32_t* sums, const BFloat16* x, Vec factor) {
  __m256i own_sums[kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) {
    const __m256i own = words_of(x + i * kWordsAtOnce, factor);
    own_sums[i] = sums_of_pairs(own);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(words) + i, arranged<kHasNibbles, kIsPairs>(own));
  }
  if constexpr (kCount == 4) {
    const __m256i quarters = _mm256_hadd_epi32(_mm256_hadd_epi32(own_sums[0], own_sums[1]),
                                               _mm256_hadd_epi32(own_sums[2], own_sums[3]));
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(sums),
                     _mm_add_epi32(_mm256_castsi256_si128(quarters), _mm256_extracti128_si256(quarters, 1)));
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) sums[i] = sum_of(own_sums[i]);
  }
}

// One block, of a multiple of kWordsAtOnce inputs, whose largest word has `bits` bits and a sign. What is not
// finite makes its scale NaN, and so all outputs; blocks below 2^-112, whose power might be no normal float,
// are zero. sums: of each kWordsAtOnce words.
template <bool kHasNibbles, bool kIsPairs>
SPLITSERVE_INLINE void make_words(char* words, float* scale, int32_t* sums, const BFloat16* x, int64_t depth,
                                  uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7f80, kBias = 127, kLeastExponent = kLongestWord;
  constexpr int kFew = 4;
  const uint32_t largest = largest_bits(x, depth);
  // 255 * 2^7 would be one too large for two signed bytes.
  const uint32_t exponent = (largest + 1) >> 7;
  if (largest >= kInfinity || exponent < kLeastExponent) {
    std::memset(words, 0, static_cast<size_t>(depth) * sizeof(int16_t));
    *scale = largest >= kInfinity ? __builtin_nanf("") : 0.0f;
    for (int64_t k = 0; k < depth; k += kWordsAtOnce) *sums++ = 0;
    return;
  }
  *scale = power_of_two(exponent - (bits - 1));
  const Vec factor = broadcast(power_of_two(2 * kBias + (bits - 1) - exponent));
  int64_t k = 0;
  const auto make = [&](auto count) __attribute__((always_inline)) {
    make_few_words<kHasNibbles, kIsPairs, count>(words + k * static_cast<int64_t>(sizeof(int16_t)),
                                                 sums + k / kWordsAtOnce, x + k, factor);
    k += count * kWordsAtOnce;
  };
  while (k + kFew * kWordsAtOnce <= depth) make(std::integral_constant<int, kFew>());
  while (k < depth) make(std::integral_constant<int, 1>());
}

// The same as bytes, for codes of 4 bits; what is not finite, and what is too small for a factor,
// likewise.
SPLITSERVE_INLINE int32_t make_bytes(char* bytes, float* scale, const BFloat16* x, int64_t depth) {
  constexpr uint32_t kInfinity = 0x7f80;
  constexpr float kMost = 127.0f, kLeast = 1e-36f;
  const uint32_t bits = largest_bits(x, depth);
  const float largest = std::bit_cast<float>(bits << 16);
  if (bits >= kInfinity || largest < kLeast) {
    std::memset(bytes, 0, static_cast<size_t>(depth));
    *scale = bits >= kInfinity ? __builtin_nanf("") : 0.0f;
    return 0;
  }
  *scale = largest / kMost;
  const Vec factor = broadcast(kMost / largest);
  // Quads as NibbleQuads has them, of 8 neighbours each.
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  __m256i sums = _mm256_setzero_si256();
  for (int64_t k = 0; k < depth; k += kWordsAtOnce) {
    const __m256i own = words_of(x + k, factor);
    sums = _mm256_add_epi32(sums, sums_of_pairs(own));
    const __m128i packed = _mm_packs_epi16(_mm256_castsi256_si128(own), _mm256_extracti128_si256(own, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(bytes + k), _mm_shuffle_epi8(packed, order));
  }
  return sum_of(sums);
}

// The words of all rows of a call.
template <typename Format>
class WordsOfRows {
  using Dot = typename Format::Dot;

 public:
  // In the thread's memory for calls.
  explicit WordsOfRows(const LinearParams& params)
      : p(params), depth(Format::block_depth(params)), part(Format::kHasUnits ? params.groups.depth : depth) {
    const int64_t size = ceil_div(p.depth, kStretchInputs) * rows * kStretchBytes<Dot>;
    const int64_t num_scales = stride * blocks, values = num_scales * parts;
    constexpr int64_t kBytesOfEach = sizeof(float) + 2 * sizeof(int32_t);
    words = static_cast<char*>(
        scratch(size + num_scales * static_cast<int64_t>(sizeof(float)) + values * kBytesOfEach));
    scales = reinterpret_cast<float*>(words + size);
    sums = scales + num_scales;
    firsts = reinterpret_cast<int32_t*>(sums + values);
    rests = firsts + values;
  }

  RowWords make() {
    parallel_for(p.rows, p.rows * p.depth, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) make_row(row);
    });
    return {words, scales, firsts, rests, sums, rows, stride, depth, blocks, parts};
  }

 private:
  // Its last block may be shorter: zeros follow it.
  void make_row(int64_t row) {
    const BFloat16* const x = static_cast<const BFloat16*>(p.x) + row * p.x_stride;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = block * depth, left = p.depth - first, inputs = left < depth ? left : depth;
      const BFloat16* own = x + first;
      BFloat16 padded[kLargestGroup];
      if (inputs % kWordsAtOnce != 0) {
        std::memset(padded, 0, sizeof padded);
        std::memcpy(padded, own, static_cast<size_t>(inputs) * sizeof(BFloat16));
        own = padded;
      }
      const float scale = make_block(block, row, own, ceil_div(inputs, kWordsAtOnce) * kWordsAtOnce);
      scales[block * stride + row] = scale;
    }
  }

  // Returns what an integer is worth.
  float make_block(int64_t block, int64_t row, const BFloat16* x, int64_t inputs) {
    char* const to = words + word_offset<Dot>(block * depth, row, rows);
    int32_t sums_of_words[kStretchInputs / kWordsAtOnce];
    float scale;
    if constexpr (Dot::kWordBytes == 1) {
      static_assert(Format::kHasNibbles);
      const int32_t sum = make_bytes(to, &scale, x, inputs);
      set_sums(block * parts * stride + row, sum, scale);
    } else {
      make_words<Format::kHasNibbles, Dot::kIsPairs>(to, &scale, sums_of_words, x, inputs,
                                                     Format::word_bits(p));
      int64_t place = block * parts * stride + row;
      for (int64_t first = 0; first < inputs; first += part, place += stride) {
        const int64_t end = first + part < inputs ? first + part : inputs;
        int32_t sum = 0;
        for (int64_t k = first; k < end; k += kWordsAtOnce) sum += sums_of_words[k / kWordsAtOnce];
        set_sums(place, sum, scale);
      }
    }
    return scale;
  }

  SPLITSERVE_INLINE void set_sums(int64_t place, int32_t sum, float scale) {
    const int32_t begin = -zero * sum;
    firsts[place] = Dot::first(begin);
    if constexpr (Dot::kPhases == 2) rests[place] = Dot::rest(begin);
    if (p.groups.has_offsets) sums[place] = static_cast<float>(sum) * scale;
  }

  const LinearParams& p;
  static constexpr int64_t kLineValues = 16;
  // Values of neighbouring blocks are not a power of two apart: they would be in the same few lines of a
  // cache.
  const int64_t depth, part, parts = depth / part, blocks = ceil_div(p.depth, depth),
                             stride = ((p.rows / kLineValues + 1) | 1) * kLineValues;
  // Nor are the words of neighbouring stretches.
  const int64_t rows = p.rows | 1;
  const int32_t zero = Format::zero(p);
  char* words;
  float *scales, *sums;
  int32_t *firsts, *rests;
};

// The same call with the words of x, valid until the thread's next one.
template <typename Format>
inline LinearParams with_words(LinearParams p) {
  p.words = WordsOfRows<Format>(p).make();
  return p;
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
