// How the forms in which weights are kept become operands of a dot product: one struct per format.
//
// Formats of steps have load(), from the bytes of a step to the operands of a panel's registers; those of
// groups have decode(). Codes convert exactly, so scales can be applied to the sums.
#pragma once

#include "cpu/dot_step.h"
#include "cpu/packed.h"

namespace splitserve::SPLITSERVE_ISA {

// Rows of x in a tile: as many as leave all its sums and operands in registers. Up to kFewRows have too few
// sums for a multiplier that takes the next product of a sum only cycles later.
#if defined(__AVX512BF16__)
inline constexpr int kStepRows = 12, kGroupRows = 8, kFewRows = 6;
#elif defined(__AVX512F__)
inline constexpr int kStepRows = 6, kGroupRows = 4, kFewRows = 0;
#elif defined(__AVX2__)
inline constexpr int kStepRows = 2, kGroupRows = 1, kFewRows = 0;
#else
inline constexpr int kStepRows = 1, kGroupRows = 1, kFewRows = 0;
#endif

inline constexpr int kPanelVecs = static_cast<int>(kPanelCols) / kLanes;

// Steps in a round of the loop over a panel; with 16 registers a second one makes them spill.
inline constexpr int kUnitSteps = kLanes == 16 ? 2 : 1;

// Weights that are kept as they are multiplied.
template <typename T, WeightFormat format>
struct PlainWeights {
  using X = T;
  static constexpr WeightFormat kFormat = format;
  static constexpr int kMaxRows = kStepRows;
  static constexpr int64_t kStepBytes = kPanelCols * 4;
  static constexpr int64_t kUnitBytes = kUnitSteps * kStepBytes;
  SPLITSERVE_INLINE static DotStep<X>::Operand load(const char* step, int vec) {
    return DotStep<X>::load(reinterpret_cast<const X*>(step) + vec * DotStep<X>::kSize);
  }
};
using Float32Weights = PlainWeights<float, WeightFormat::kFloat32>;
using BFloat16Weights = PlainWeights<BFloat16, WeightFormat::kBFloat16>;

#if defined(__AVX512BF16__)
// The bytes of the bfloat16 of 0 to 127.
struct MagnitudeBytes {
  alignas(64) uint8_t low[128], high[128];
  constexpr MagnitudeBytes() : low{}, high{} {
    for (int exponent = 0; exponent < 7; ++exponent) {
      for (int value = 1 << exponent; value < 2 << exponent; ++value) {
        const int bits = (127 + exponent) << 7 | (value << (7 - exponent) & 127);
        low[value] = static_cast<uint8_t>(bits);
        high[value] = static_cast<uint8_t>(bits >> 8);
      }
    }
  }
};
constexpr MagnitudeBytes kMagnitudeBytes;
#endif

// Codes from -127 to 127.
struct Int8Weights {
  using X = BFloat16;
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kMaxRows = kStepRows;
  static constexpr int64_t kStepBytes = kPanelCols * 2;
  static constexpr int64_t kUnitBytes = kUnitSteps * kStepBytes;
#if defined(__AVX512BF16__)
  // Two look-ups give the bytes of all magnitudes, which then meet: six instructions for a whole step, of
  // which none but the look-ups needs a unit that multiplies. They leave each register every other four
  // outputs.
  SPLITSERVE_INLINE static DotStep<X>::Operand load(const char* step, int vec) {
    const auto look_up = [](const uint8_t* table, __m512i ids) __attribute__((always_inline)) {
      return _mm512_permutex2var_epi8(_mm512_load_si512(table), ids, _mm512_load_si512(table + 64));
    };
    constexpr int kFirstOrBothOthers = 0xf8;
    const __m512i codes = _mm512_loadu_si512(step), magnitudes = _mm512_abs_epi8(codes);
    const __m512i low = look_up(kMagnitudeBytes.low, magnitudes);
    const __m512i high = _mm512_ternarylogic_epi32(look_up(kMagnitudeBytes.high, magnitudes), codes,
                                                   _mm512_set1_epi8(-128), kFirstOrBothOthers);
    return reinterpret_cast<__m512bh>(vec == 0 ? _mm512_unpacklo_epi8(low, high)
                                               : _mm512_unpackhi_epi8(low, high));
  }
  SPLITSERVE_INLINE static void put_in_order(Vec (&sums)[kPanelVecs]) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const Vec low = sums[0], high = sums[1];
    sums[0] = _mm512_permutex2var_ps(low, first, high);
    sums[1] = _mm512_permutex2var_ps(low, second, high);
  }
#else
  SPLITSERVE_INLINE static DotStep<X>::Operand load(const char* step, int vec) {
    typedef int16_t ShortVec __attribute__((vector_size(kLanes * 2)));
    ShortVec packed;
    std::memcpy(&packed, step + vec * kLanes * 2, sizeof packed);
    const IntVec wide = __builtin_convertvector(packed, IntVec);
    return {__builtin_convertvector((wide << 24) >> 24, Vec), __builtin_convertvector(wide >> 8, Vec)};
  }
  // One step in the layout of BFloat16Weights.
  SPLITSERVE_INLINE static void unpack(const char* step, char* out) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      const DotStep<X>::Operand operand = load(step, v);
      const UintVec pairs = as_uint(operand.even) >> 16 | as_uint(operand.odd);
      std::memcpy(out + v * kLanes * 4, &pairs, sizeof pairs);
    }
  }
#endif
};

// Codes of 4 bits in groups of 32: Codes has decode(), from 32 bits per output to the operand of pair j of a
// block, and scale(), from the beginning of a group to the scales of a register of outputs.
template <typename Codes, WeightFormat format>
struct GroupWeights : Codes {
  using X = BFloat16;
  static constexpr WeightFormat kFormat = format;
  static constexpr int kMaxRows = kGroupRows;
  static constexpr int64_t kScaleBytes = scale_bytes(format);
  static constexpr int64_t kUnitBytes = kScaleBytes + kGroupCodeBytes;
  SPLITSERVE_INLINE static UintVec load(const char* block, int vec) {
    UintVec nibbles;
    std::memcpy(&nibbles, block + vec * kLanes * 4, sizeof nibbles);
    return nibbles;
  }
};

#if defined(__AVX512BF16__)
// The operand of pair j of a block by a look-up, which takes the lowest 5 bits of each half as index: the
// values of 16 codes, the same for both values of the fifth bit.
SPLITSERVE_INLINE DotStep<BFloat16>::Operand look_up_pair(__m256i values, UintVec nibbles, int j) {
  return reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(nibbles >> (4 * j)),
                                                             _mm512_broadcast_i64x4(values)));
}
#endif

// From -8 to 7.
struct Int4Codes {
  SPLITSERVE_INLINE static DotStep<BFloat16>::Operand decode(UintVec nibbles, int j) {
#if defined(__AVX512BF16__)
    const __m256i values =
        _mm256_setr_epi16(0x0000, 0x3f80, 0x4000, 0x4040, static_cast<short>(0x4080), 0x40a0, 0x40c0, 0x40e0,
                          static_cast<short>(0xc100), static_cast<short>(0xc0e0), static_cast<short>(0xc0c0),
                          static_cast<short>(0xc0a0), static_cast<short>(0xc080), static_cast<short>(0xc040),
                          static_cast<short>(0xc000), static_cast<short>(0xbf80));
    return look_up_pair(values, nibbles, j);
#else
    const IntVec even = reinterpret_cast<IntVec>(nibbles << (28 - 4 * j)) >> 28;
    const IntVec odd = reinterpret_cast<IntVec>(nibbles << (12 - 4 * j)) >> 28;
    return {__builtin_convertvector(even, Vec), __builtin_convertvector(odd, Vec)};
#endif
  }
  SPLITSERVE_INLINE static Vec scale(const char* group, int vec) {
    return ::splitserve::SPLITSERVE_ISA::load(reinterpret_cast<const BFloat16*>(group) + vec * kLanes);
  }
};
using Int4Weights = GroupWeights<Int4Codes, WeightFormat::kInt4>;

// 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with either sign.
struct Mxfp4Codes {
  SPLITSERVE_INLINE static DotStep<BFloat16>::Operand decode(UintVec nibbles, int j) {
#if defined(__AVX512BF16__)
    const __m256i values =
        _mm256_setr_epi16(0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, static_cast<short>(0x4080), 0x40c0,
                          static_cast<short>(0x8000), static_cast<short>(0xbf00), static_cast<short>(0xbf80),
                          static_cast<short>(0xbfc0), static_cast<short>(0xc000), static_cast<short>(0xc040),
                          static_cast<short>(0xc080), static_cast<short>(0xc0c0));
    return look_up_pair(values, nibbles, j);
#else
    return {value(nibbles >> (4 * j)), value(nibbles >> (16 + 4 * j))};
#endif
  }
  SPLITSERVE_INLINE static Vec scale(const char* group, int vec) {
    typedef uint8_t ByteVec __attribute__((vector_size(kLanes)));
    ByteVec exponents;
    std::memcpy(&exponents, group + vec * kLanes, sizeof exponents);
    return as_float(__builtin_convertvector(exponents, UintVec) << 23);
  }

 private:
  // Of the code in the lowest 4 bits. From 1 on its exponent and mantissa are those of a float that is moved.
  SPLITSERVE_INLINE static Vec value(UintVec code) {
    const UintVec magnitude = code & 7u, sign = (code & 8u) << 28;
    const Vec normal = as_float((magnitude << 22) + (126u << 23));
    const Vec small = __builtin_convertvector(reinterpret_cast<IntVec>(magnitude), Vec) * 0.5f;
    const Vec value = magnitude < 2u ? small : normal;
    return as_float(as_uint(value) | sign);
  }
};
using Mxfp4Weights = GroupWeights<Mxfp4Codes, WeightFormat::kMxfp4>;

}  // namespace splitserve::SPLITSERVE_ISA
