// Rows of activations as int8, or the same in 16 bits: multiples of a row's largest magnitude over 127,
// rounded to nearest.
#pragma once

#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// So many numbers become codes at once: as many bytes as a register has.
inline constexpr int64_t kCodesAtOnce = 4 * kLanes;
static_assert(kDotDepth % kCodesAtOnce == 0);

// Two of what lies in 32 bits.
typedef int16_t WordVec __attribute__((vector_size(kLanes * 4)));

SPLITSERVE_INLINE WordVec max_words(WordVec a, WordVec b) {
#if defined(__AVX512BW__)
  return reinterpret_cast<WordVec>(
      _mm512_max_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<WordVec>(
      _mm256_max_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<WordVec>(_mm_max_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return a > b ? a : b;
#endif
}

// Calls fn(numbers, k) for each kCodesAtOnce numbers of a row; zeros stand for what lies beyond it.
template <typename Fn>
SPLITSERVE_INLINE void each_chunk(const BFloat16* x, int64_t depth, const Fn& fn) {
  int64_t k = 0;
  for (; k + kCodesAtOnce <= depth; k += kCodesAtOnce) fn(x + k, k);
  if (k == depth) return;
  BFloat16 last[kCodesAtOnce] = {};
  std::memcpy(last, x + k, static_cast<size_t>(depth - k) * sizeof(BFloat16));
  fn(last, k);
}

// The largest magnitude of a row; NaN or infinite if a number is. Magnitudes are in the order of their bits.
inline float largest_magnitude(const BFloat16* x, int64_t depth) {
  WordVec largest{}, other{};
  each_chunk(x, depth, [&](const BFloat16* numbers, int64_t) __attribute__((always_inline)) {
    WordVec halves[2];
    std::memcpy(halves, numbers, sizeof halves);
    largest = max_words(largest, halves[0] & 0x7fff);
    other = max_words(other, halves[1] & 0x7fff);
  });
  largest = max_words(largest, other);
  // Either half of each 32 bits as the bits of a float, which is as they are ordered as integers, too.
  const IntVec pairs = reinterpret_cast<IntVec>(largest), lower = pairs << 16, upper = pairs & ~0xffff;
  const IntVec larger = lower > upper ? lower : upper;
  int32_t most = 0;
#if defined(__AVX512F__)
  most = _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(larger));
#else
  for (int i = 0; i < kLanes; ++i) most = larger[i] > most ? larger[i] : most;
#endif
  float magnitude;
  std::memcpy(&magnitude, &most, sizeof magnitude);
  return magnitude;
}

// Codes of kCodesAtOnce numbers, which are rounded to nearest, ties to even; added to `sum`, whose lanes are
// any of them.
#if defined(__AVX512BW__)
SPLITSERVE_INLINE __m512i rounded_words(const BFloat16* x, Vec factor) {
  const __m512i numbers = _mm512_loadu_si512(x), zero = _mm512_setzero_si512();
  const Vec low = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, numbers));
  const Vec high = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, numbers));
  return _mm512_packs_epi32(_mm512_cvtps_epi32(low * factor), _mm512_cvtps_epi32(high * factor));
}

SPLITSERVE_INLINE IntVec round_chunk(int8_t* codes, const BFloat16* x, Vec factor, IntVec sum) {
  const __m512i first = rounded_words(x, factor), second = rounded_words(x + 2 * kLanes, factor);
  // What is packed takes turns, 8 bytes of each.
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const __m512i bytes = _mm512_permutexvar_epi64(order, _mm512_packs_epi16(first, second));
  _mm512_storeu_si512(codes, bytes);
#if defined(__AVX512VNNI__)
  const __m512i added = _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), _mm512_set1_epi8(1), bytes);
  return reinterpret_cast<IntVec>(added);
#else
  const __m512i pairs = _mm512_madd_epi16(_mm512_add_epi16(first, second), _mm512_set1_epi16(1));
  return sum + reinterpret_cast<IntVec>(pairs);
#endif
}
#elif defined(__AVX2__)
SPLITSERVE_INLINE __m256i rounded_words(const BFloat16* x, Vec factor) {
  const __m256i numbers = _mm256_loadu_si256((const __m256i_u*)x), zero = _mm256_setzero_si256();
  const Vec low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, numbers));
  const Vec high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, numbers));
  return _mm256_packs_epi32(_mm256_cvtps_epi32(low * factor), _mm256_cvtps_epi32(high * factor));
}

SPLITSERVE_INLINE IntVec round_chunk(int8_t* codes, const BFloat16* x, Vec factor, IntVec sum) {
  const __m256i first = rounded_words(x, factor), second = rounded_words(x + 2 * kLanes, factor);
  // What is packed takes turns, 8 bytes of each.
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0b11011000);
  _mm256_storeu_si256((__m256i_u*)codes, bytes);
  const __m256i pairs = _mm256_madd_epi16(_mm256_add_epi16(first, second), _mm256_set1_epi16(1));
  return sum + reinterpret_cast<IntVec>(pairs);
}
#else
// Adding 1.5 * 2^23 leaves no bits for a fraction, in a register as in memory.
SPLITSERVE_INLINE IntVec round_chunk(int8_t* codes, const BFloat16* x, Vec factor, IntVec sum) {
  const Vec no_fraction = broadcast(12582912.0f);
  for (int64_t k = 0; k < kCodesAtOnce; k += kLanes) {
    const Vec scaled = load(x + k) * factor + no_fraction;
    const IntVec whole = reinterpret_cast<IntVec>(as_uint(scaled) - as_uint(no_fraction));
    const ByteVec bytes = __builtin_convertvector(whole, ByteVec);
    std::memcpy(codes + k, &bytes, sizeof bytes);
    sum += whole;
  }
  return sum;
}
#endif

// Returns the sum of the codes.
inline int32_t round_row(int8_t* codes, const BFloat16* x, int64_t depth, float inverse) {
  const Vec factor = broadcast(inverse);
  IntVec sum{};
  each_chunk(x, depth, [&](const BFloat16* numbers, int64_t k) __attribute__((always_inline)) {
    sum = round_chunk(codes + k, numbers, factor, sum);
  });
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(sum));
#else
  int32_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += sum[i];
  return total;
#endif
}

// A row that holds what is no finite number becomes NaN in all outputs.
inline float code_row(int8_t* codes, int32_t* zero, const BFloat16* x, int64_t depth) {
  const float largest = largest_magnitude(x, depth);
  // Smaller numbers are worth nothing beside 127 times the smallest scale whose inverse is finite.
  const bool has_codes = largest > 1e-36f && largest <= 3.4028234e38f;
  *zero = 128 * round_row(codes, x, has_codes ? depth : 0, 127.0f / largest);
  if (!has_codes) std::memset(codes, 0, static_cast<size_t>(depth));
  return largest / 127.0f;
}

// Codes as they are multiplied, in place of themselves, which are the second half of their memory.
inline void spread_codes(int8_t*, int64_t) {}
inline void spread_codes(int16_t* codes, int64_t depth) {
  const int8_t* from = reinterpret_cast<const int8_t*>(codes + depth) - depth;
  // What is written over has been read: a step ends at byte 2 (k + kCodesAtOnce), and reads from depth + k
  // on.
  for (int64_t k = 0; k < depth; k += kCodesAtOnce) {
    WordVec fours;
    std::memcpy(&fours, from + k, sizeof fours);
    const IntVec even = reinterpret_cast<IntVec>((fours << 8) >> 8),
                 odd = reinterpret_cast<IntVec>(fours >> 8);
    int32_t pairs[2 * kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      pairs[2 * lane] = even[lane];
      pairs[2 * lane + 1] = odd[lane];
    }
    std::memcpy(codes + k, pairs, sizeof pairs);
  }
}

// The same call with the codes of x as the format multiplies them, valid until the thread's next one.
template <typename Input>
LinearParams with_codes(LinearParams p) {
  const int64_t depth = ceil_div(p.depth, kDotDepth) * kDotDepth, row_bytes = depth * sizeof(Input);
  char* memory = static_cast<char*>(scratch(p.rows * (row_bytes + 8)));
  float* scales = reinterpret_cast<float*>(memory + p.rows * row_bytes);
  int32_t* zeros = reinterpret_cast<int32_t*>(memory + p.rows * (row_bytes + 4));
  parallel_for(p.rows, p.rows * p.depth, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* const own = memory + row * row_bytes;
      int8_t* const codes = reinterpret_cast<int8_t*>(own + row_bytes - depth);
      std::memset(codes + p.depth, 0, static_cast<size_t>(depth - p.depth));
      scales[row] =
          code_row(codes, zeros + row, static_cast<const BFloat16*>(p.x) + row * p.x_stride, p.depth);
      spread_codes(reinterpret_cast<Input*>(own), depth);
    }
  });
  p.codes = {memory, scales, zeros};
  return p;
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
