// How the forms in which weights are kept become operands of a dot product: one struct per format.
//
// Formats of steps have load(), from the bytes of one register's outputs in a step to the operand; int4 works
// on groups and has pair(), from 32 bits per output to the operand of pair j of a block. Integers convert
// exactly, so scales can be applied to the sums.
#pragma once

#include "cpu/dot_step.h"
#include "cpu/packed.h"

namespace splitserve::SPLITSERVE_ISA {

// Rows of x in a tile: as many as leave all its sums and operands in registers.
#if defined(__AVX512BF16__)
inline constexpr int kStepRows = 8, kGroupRows = 6;
#elif defined(__AVX512F__)
inline constexpr int kStepRows = 6, kGroupRows = 4;
#elif defined(__AVX2__)
inline constexpr int kStepRows = 2, kGroupRows = 1;
#else
inline constexpr int kStepRows = 1, kGroupRows = 1;
#endif

inline constexpr int kPanelVecs = static_cast<int>(kPanelCols) / kLanes;

struct Float32Weights {
  using X = float;
  using Operand = DotStep<X>::Operand;
  static constexpr WeightFormat kFormat = WeightFormat::kFloat32;
  static constexpr int kMaxRows = kStepRows;
  static constexpr int64_t kUnitBytes = kPanelCols * 4;
  SPLITSERVE_INLINE static Operand load(const char* step, int vec) {
    return DotStep<X>::load(reinterpret_cast<const X*>(step) + vec * kLanes);
  }
};

struct BFloat16Weights {
  using X = BFloat16;
  using Operand = DotStep<X>::Operand;
  static constexpr WeightFormat kFormat = WeightFormat::kBFloat16;
  static constexpr int kMaxRows = kStepRows;
  static constexpr int64_t kUnitBytes = kPanelCols * 4;
  SPLITSERVE_INLINE static Operand load(const char* step, int vec) {
    return DotStep<X>::load(reinterpret_cast<const X*>(step) + vec * 2 * kLanes);
  }
};

struct Int8Weights {
  using X = BFloat16;
  using Operand = DotStep<X>::Operand;
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kMaxRows = kStepRows;
  static constexpr int64_t kUnitBytes = kPanelCols * 2;
  SPLITSERVE_INLINE static Operand load(const char* step, int vec) {
    const char* pairs = step + vec * kLanes * 2;
#if defined(__AVX512BF16__)
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs) + 1);
    return _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(high)),
                               _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low)));
#else
    typedef int16_t ShortVec __attribute__((vector_size(kLanes * 2)));
    ShortVec packed;
    std::memcpy(&packed, pairs, sizeof packed);
    const IntVec wide = __builtin_convertvector(packed, IntVec);
    return {__builtin_convertvector((wide << 24) >> 24, Vec), __builtin_convertvector(wide >> 8, Vec)};
#endif
  }
  // One step in the layout of BFloat16Weights.
  SPLITSERVE_INLINE static void unpack(const char* step, char* out) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      const Operand operand = load(step, v);
#if defined(__AVX512BF16__)
      std::memcpy(out + v * kLanes * 4, &operand, sizeof operand);
#else
      const UintVec pairs = as_uint(operand.even) >> 16 | as_uint(operand.odd);
      std::memcpy(out + v * kLanes * 4, &pairs, sizeof pairs);
#endif
    }
  }
};

struct Int4Weights {
  using X = BFloat16;
  using Operand = DotStep<X>::Operand;
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr int kMaxRows = kGroupRows;
  static constexpr int64_t kUnitBytes = kGroupBytes;
  SPLITSERVE_INLINE static UintVec load(const char* block, int vec) {
    UintVec nibbles;
    std::memcpy(&nibbles, block + vec * kLanes * 4, sizeof nibbles);
    return nibbles;
  }
  SPLITSERVE_INLINE static Operand pair(UintVec nibbles, int j) {
#if defined(__AVX512BF16__)
    // The look-up takes the lowest 5 bits of each half as index; both values of the fifth find the same.
    const __m512i values = _mm512_broadcast_i64x4(
        _mm256_setr_epi16(0x0000, 0x3f80, 0x4000, 0x4040, static_cast<short>(0x4080), 0x40a0, 0x40c0, 0x40e0,
                          static_cast<short>(0xc100), static_cast<short>(0xc0e0), static_cast<short>(0xc0c0),
                          static_cast<short>(0xc0a0), static_cast<short>(0xc080), static_cast<short>(0xc040),
                          static_cast<short>(0xc000), static_cast<short>(0xbf80)));
    return reinterpret_cast<__m512bh>(
        _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(nibbles >> (4 * j)), values));
#else
    const IntVec even = reinterpret_cast<IntVec>(nibbles << (28 - 4 * j)) >> 28;
    const IntVec odd = reinterpret_cast<IntVec>(nibbles << (12 - 4 * j)) >> 28;
    return {__builtin_convertvector(even, Vec), __builtin_convertvector(odd, Vec)};
#endif
  }
};

}  // namespace splitserve::SPLITSERVE_ISA
