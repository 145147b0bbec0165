// How the forms in which weights are kept become operands of a dot product: one struct per format.
//
// Formats of steps have load(), from the bytes of a step to the operands of a panel's registers; those of
// groups have decode(). Codes convert exactly, so scales can be applied to the sums.
#pragma once

#include <bit>

#include "cpu/dot_step.h"
#include "cpu/int8_dot.h"
#include "cpu/packed.h"

namespace splitserve::SPLITSERVE_ISA {

// Rows of x in a tile: as many as leave all its sums and operands in registers. Up to kFewRows have too few
// sums for a multiplier that takes the next product of a sum only cycles later.
#if defined(__AVX512BF16__)
inline constexpr int kStepRows = 12, kGroupRows = 8, kFewRows = 6;
#elif defined(__AVX512F__)
inline constexpr int kStepRows = 6, kGroupRows = 4, kFewRows = 0;
#elif defined(__AVX2__)
inline constexpr int kStepRows = 2, kGroupRows = 2, kFewRows = 0;
#elif defined(SPLITSERVE_HAS_BF16_DOT)
inline constexpr int kStepRows = 3, kGroupRows = 3, kFewRows = 0;
#elif defined(__aarch64__)
inline constexpr int kStepRows = 2, kGroupRows = 2, kFewRows = 0;
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

// That of -128.
inline constexpr char kHighOfLeast = static_cast<char>(0xc3);
#endif

// Codes from -128 to 127.
struct Int8Weights {
  using X = BFloat16;
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kMaxRows = kStepRows;
  static constexpr int64_t kStepBytes = kPanelCols * 2;
  static constexpr int64_t kUnitBytes = kUnitSteps * kStepBytes;
#if defined(__AVX512BF16__)
  // Registers have every other four outputs: see unpack_int8.h.
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
    return DotStep<X>::join(__builtin_convertvector((wide << 24) >> 24, Vec),
                            __builtin_convertvector(wide >> 8, Vec));
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
    return DotStep<BFloat16>::join(__builtin_convertvector(even, Vec), __builtin_convertvector(odd, Vec));
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
    return DotStep<BFloat16>::join(value(nibbles >> (4 * j)), value(nibbles >> (16 + 4 * j)));
#endif
  }
  SPLITSERVE_INLINE static Vec scale(const char* group, int vec) {
    const uint8_t* const exponents = reinterpret_cast<const uint8_t*>(group) + vec * kLanes;
    return as_float(load_wide(exponents) << 23);
  }

 private:
  // Of the code in the lowest 4 bits.
  SPLITSERVE_INLINE static Vec value(UintVec code) {
    // From 1 on its exponent and mantissa are those of a float that is moved.
    const UintVec magnitude = code & 7u, sign = (code & 8u) << 28;
    const Vec normal = as_float((magnitude << 22) + (126u << 23));
    const Vec small = __builtin_convertvector(reinterpret_cast<IntVec>(magnitude), Vec) * 0.5f;
    const Vec value = magnitude < 2u ? small : normal;
    return as_float(as_uint(value) | sign);
  }
};
using Mxfp4Weights = GroupWeights<Mxfp4Codes, WeightFormat::kMxfp4>;

// Formats whose scales lie beside them have operand(), from 16 inputs of a panel, which are half a unit, to
// the operand of a pair of them; and columns(), which brings scales into the order of a register's outputs.
inline constexpr int kHalfPairs = 8;

struct Int8GroupWeights : Int8Weights {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8Groups;
  static constexpr int kMaxRows = kGroupRows;
  static constexpr int64_t kHalfBytes = kHalfPairs * kStepBytes;
  static constexpr int64_t kUnitBytes = 2 * kHalfBytes;
  static constexpr float kZero = 0;
#if !defined(__AVX512BF16__)
  SPLITSERVE_INLINE static DotStep<X>::Operand operand(const char* half, int vec, int pair) {
    return Int8Weights::load(half + pair * kStepBytes, vec);
  }
#endif
  SPLITSERVE_INLINE static Vec columns(const float* p, int vec) {
#if defined(__AVX512BF16__)
    // The opposite of put_in_order.
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i ids = _mm512_add_epi32(first, _mm512_set1_epi32(4 * vec));
    return _mm512_permutex2var_ps(::splitserve::SPLITSERVE_ISA::load(p), ids,
                                  ::splitserve::SPLITSERVE_ISA::load(p + kLanes));
#else
    return ::splitserve::SPLITSERVE_ISA::load(p + vec * kLanes);
#endif
  }
};

#if defined(__AVX512BF16__)
// The bytes of the bfloat16 of the 128 magnitudes of E4M3.
struct Fp8Bytes {
  alignas(64) uint8_t low[128], high[128];
  constexpr Fp8Bytes() : low{}, high{} {
    for (int code = 1; code < 128; ++code) {
      int exponent = code >> 3, fraction = code & 7;
      if (exponent == 0) {
        // Denormals, of which bfloat16 has none so large.
        for (exponent = 1; fraction < 8; --exponent) fraction *= 2;
        fraction &= 7;
      }
      const int bits = (exponent + 120) << 7 | fraction << 4;
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
constexpr Fp8Bytes kFp8Bytes;
#endif

// The same for codes of E4M3, which convert exactly, too.
struct Fp8GroupWeights : Int8GroupWeights {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8Groups;
  SPLITSERVE_INLINE static DotStep<X>::Operand operand(const char* half, int vec, int pair) {
    return load(half + pair * kStepBytes, vec);
  }
  SPLITSERVE_INLINE static DotStep<X>::Operand load(const char* step, int vec) {
#if defined(__AVX512BF16__)
    constexpr int kFirstOrBothOthers = 0xf8;
    const auto& [low_bytes, high_bytes] = kFp8Bytes;
    const __m512i codes = _mm512_loadu_si512(step);
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(low_bytes), codes, _mm512_load_si512(low_bytes + 64));
    const __m512i magnitudes =
        _mm512_permutex2var_epi8(_mm512_load_si512(high_bytes), codes, _mm512_load_si512(high_bytes + 64));
    const __m512i high =
        _mm512_ternarylogic_epi32(magnitudes, codes, _mm512_set1_epi8(-128), kFirstOrBothOthers);
    return reinterpret_cast<__m512bh>(vec == 0 ? _mm512_unpacklo_epi8(low, high)
                                               : _mm512_unpackhi_epi8(low, high));
#else
    HalfVec pairs;
    std::memcpy(&pairs, step + vec * kLanes * 2, sizeof pairs);
    const UintVec wide = __builtin_convertvector(pairs, UintVec);
    return DotStep<X>::join(number(wide & 255u), number(wide >> 8));
#endif
  }

 private:
  // Exponent and fraction in the places of a float's are worth 2^-120 of the number, denormals too.
  SPLITSERVE_INLINE static Vec number(UintVec code) {
    return as_float((code & 127u) << 20 | (code & 128u) << 24) * 0x1p120f;
  }
};

// Codes of 8 bits for activations of 8 bits; see int8_dot.h.
struct Int8DotWeights {
  using X = BFloat16;
  using Dot = Int8Dot;
  static constexpr WeightFormat kFormat = WeightFormat::kInt8Dot;
#if defined(__AVX2__)
  static constexpr int kMaxRows = kVecRegisters == 32 ? 12 : 6;
#else
  static constexpr int kMaxRows = kStepRows;
#endif
  static constexpr int64_t kStepBytes = kPanelCols * kDotPair;
  static constexpr int kUnitSteps = 2;
  static constexpr int64_t kUnitBytes = kUnitSteps * kStepBytes;
};

#if defined(SPLITSERVE_MAY_USE_VNNI)
struct ByteDotWeights : Int8DotWeights {
  using Dot = ByteInt8Dot;
  static constexpr int kMaxRows = kLanes == 16 ? 12 : 3;
};
#endif

#if defined(__AVX512BF16__)
// 0 to 63 as bfloat16.
struct Int6Numbers {
  alignas(64) uint16_t bits[64];
  constexpr Int6Numbers() : bits{} {
    for (int value = 0; value < 64; ++value)
      bits[value] = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
  }
};
constexpr Int6Numbers kInt6Numbers;
#endif

// Codes from 0 to 15, which are worth kZero less if there are no offsets.
struct Int4GroupWeights {
  using X = BFloat16;
  static constexpr WeightFormat kFormat = WeightFormat::kInt4Groups;
  static constexpr int kMaxRows = kGroupRows;
  static constexpr int64_t kUnitBytes = kGroupCodeBytes;
  static constexpr int64_t kHalfBytes = kUnitBytes / 2;
  static constexpr float kZero = kInt4Zero;
  SPLITSERVE_INLINE static DotStep<X>::Operand operand(const char* half, int vec, int pair) {
    constexpr int kBlockPairs = kBlockDepth / 2;
    return decode(load(half + pair / kBlockPairs * kBlockBytes, vec), pair % kBlockPairs);
  }
  SPLITSERVE_INLINE static UintVec load(const char* block, int vec) {
    UintVec nibbles;
    std::memcpy(&nibbles, block + vec * kLanes * 4, sizeof nibbles);
    return nibbles;
  }
  SPLITSERVE_INLINE static DotStep<X>::Operand decode(UintVec nibbles, int j) {
#if defined(__AVX512BF16__)
    const __m256i values = _mm256_setr_epi16(0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                             0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
    return look_up_pair(values, nibbles, j);
#else
    return DotStep<X>::join(number(nibbles >> (4 * j)), number(nibbles >> (16 + 4 * j)));
#endif
  }
  SPLITSERVE_INLINE static Vec columns(const float* p, int vec) {
    return ::splitserve::SPLITSERVE_ISA::load(p + vec * kLanes);
  }

 private:
  SPLITSERVE_INLINE static Vec number(UintVec code) {
    return __builtin_convertvector(reinterpret_cast<IntVec>(code & 15u), Vec);
  }
};

// To the right if `count` is negative.
SPLITSERVE_INLINE UintVec moved_left(UintVec bits, int count) {
  return count < 0 ? bits >> -count : bits << count;
}

// Codes from 0 to 63, which are worth kZero less if there are no offsets.
struct Int6GroupWeights {
  using X = BFloat16;
  static constexpr WeightFormat kFormat = WeightFormat::kInt6Groups;
  static constexpr int kMaxRows = kGroupRows;
  static constexpr int64_t kHalfBytes = kInt6HalfBytes;
  static constexpr int64_t kUnitBytes = 2 * kHalfBytes;
  static constexpr float kZero = kInt6Zero;
  SPLITSERVE_INLINE static DotStep<X>::Operand operand(const char* half, int vec, int pair) {
    constexpr int kBlockPairs = kBlockDepth / 2, kNibbleBits = 4;
    const int j = pair % kBlockPairs;
    const UintVec lower = Int4GroupWeights::load(half + pair / kBlockPairs * kBlockBytes, vec) >> (4 * j);
    const UintVec upper = Int4GroupWeights::load(half + kInt6UpperOffset, vec);
    // Codes of the pair, each in the lowest 6 bits of its half of 32 bits.
    const UintVec moved = moved_left(upper, kNibbleBits - static_cast<int>(int6_shift(2 * pair)));
#if defined(__AVX512BF16__)
    constexpr int kFirstSelects = 0xca;
    const __m512i codes =
        _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x000f000f), reinterpret_cast<__m512i>(lower),
                                  reinterpret_cast<__m512i>(moved), kFirstSelects);
    // The look-up takes no more of them.
    return reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(_mm512_load_si512(kInt6Numbers.bits), codes,
                                                                _mm512_load_si512(kInt6Numbers.bits + 32)));
#else
    const UintVec codes = (lower & 0x000f000fu) | (moved & 0x00300030u);
    return DotStep<X>::join(__builtin_convertvector(reinterpret_cast<IntVec>(codes & 0xffffu), Vec),
                            __builtin_convertvector(reinterpret_cast<IntVec>(codes >> 16), Vec));
#endif
  }
  SPLITSERVE_INLINE static Vec columns(const float* p, int vec) { return Int4GroupWeights::columns(p, vec); }
};

// Where they meet floats, codes of 8 bits in groups are scaled before: once for all rows of a batch,
// where sums of groups would be scaled for each. For codes of 4 bits, whose single rows do not wait for
// memory, that costs more than it gains.
template <typename Format>
inline constexpr bool kScalesWeights =
    DotStep<BFloat16>::kIsFloat &&
    (Format::kFormat == WeightFormat::kInt8Groups || Format::kFormat == WeightFormat::kFp8Groups);

// A pair of weights of a group from their codes, where floats are multiplied; offsets, if it has them, follow
// its scales. The product is exact.
template <typename Format, bool kHasOffsets, typename Operand>
SPLITSERVE_INLINE Operand scaled(const Operand& codes, const float* scales, int vec) {
  const Vec scale = Format::columns(scales, vec);
  if constexpr (kHasOffsets) {
    const Vec offset = Format::columns(scales + kPanelCols, vec);
    return {fma(codes.even, scale, offset), fma(codes.odd, scale, offset)};
  } else {
    return {codes.even * scale, codes.odd * scale};
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
