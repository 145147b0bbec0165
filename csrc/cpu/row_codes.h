// Rows of activations as int8: multiples of a row's largest magnitude over 127, rounded to nearest.
#pragma once

#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// The largest magnitude of a row; NaN or infinite if a number is.
inline float largest_magnitude(const BFloat16* x, int64_t depth) {
  Vec largest{}, not_finite{};
  for (int64_t k = 0; k < depth; k += kLanes) {
    const Vec v = load_up_to(x + k, depth - k);
    const Vec magnitude = as_float(as_uint(v) & 0x7fffffffu);
    largest = max(largest, magnitude);
    // NaN from what is none or infinite, else 0.
    not_finite += v - v;
  }
  return max_lanes(largest) + sum_lanes(not_finite);
}

// Integers from -128 to 127. GCC 12 makes a loop over the lanes of what is one instruction here, or two.
SPLITSERVE_INLINE void store_bytes(int8_t* p, IntVec integers) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(integers));
  std::memcpy(p, &bytes, sizeof bytes);
#elif defined(__AVX2__)
  const __m256i wide = reinterpret_cast<__m256i>(integers);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
#else
  typedef int8_t ByteVec __attribute__((vector_size(kLanes)));
  const ByteVec bytes = __builtin_convertvector(integers, ByteVec);
  std::memcpy(p, &bytes, sizeof bytes);
#endif
}

// Returns the sum of the codes. Adding 1.5 * 2^23 leaves no bits for a fraction, in a register as in memory.
inline int32_t round_row(int8_t* codes, const BFloat16* x, int64_t depth, float inverse) {
  const Vec factor = broadcast(inverse), no_fraction = broadcast(12582912.0f);
  IntVec sum{};
  for (int64_t k = 0; k < depth; k += kLanes) {
    const Vec scaled = load_up_to(x + k, depth - k) * factor + no_fraction;
    const IntVec whole = reinterpret_cast<IntVec>(as_uint(scaled) - as_uint(no_fraction));
    sum += whole;
    // Rows are padded to more than a register.
    store_bytes(codes + k, whole);
  }
  int32_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += sum[i];
  return total;
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

// The same call with the codes of x, valid until the thread's next one.
inline LinearParams with_codes(LinearParams p) {
  const int64_t depth = ceil_div(p.depth, kDotDepth) * kDotDepth;
  char* memory = static_cast<char*>(scratch(p.rows * (depth + 8)));
  int8_t* codes = reinterpret_cast<int8_t*>(memory);
  float* scales = reinterpret_cast<float*>(memory + p.rows * depth);
  int32_t* zeros = reinterpret_cast<int32_t*>(memory + p.rows * (depth + 4));
  parallel_for(p.rows, p.rows * p.depth, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int8_t* own = codes + row * depth;
      std::memset(own + p.depth, 0, static_cast<size_t>(depth - p.depth));
      scales[row] = code_row(own, zeros + row, static_cast<const BFloat16*>(p.x) + row * p.x_stride, p.depth);
    }
  });
  p.codes = {codes, scales, zeros};
  return p;
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
