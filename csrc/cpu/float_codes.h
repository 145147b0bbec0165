// Codes of 8 bits as floats that stand for pairs of bfloat16: which form of a format its float tiles take.
#pragma once

#include <type_traits>

#include "cpu/tile_step.h"
#include "cpu/weight_formats.h"

#if defined(__AVX512BF16__)

namespace splitserve::SPLITSERVE_ISA {

// Integers of 8 bits. A code plus 128 in the lowest bits of 2^23 makes a float by one instruction of logic,
// in the bits above them one that is worth 256 times as much; look-ups would make bfloat16 first. A lane of a
// step holds two inputs of two outputs, so a register has every other output.
template <typename Format>
struct FloatCodes : Format {
  SPLITSERVE_INLINE static FloatTileStep::Operand load(const char* step, int vec) {
    __m512i codes = _mm512_loadu_si512(step);
    if (vec == 1) codes = _mm512_srli_epi32(codes, 16);
    constexpr int kFirstAndSecondXorThird = 0x6a;
    const auto bits = [codes](int mask, int base) __attribute__((always_inline)) {
      return reinterpret_cast<Vec>(_mm512_ternarylogic_epi32(
          codes, _mm512_set1_epi32(mask), _mm512_set1_epi32(base), kFirstAndSecondXorThird));
    };
    return {fma(bits(0xff00, 0x4b008000), broadcast(0x1p-8f), broadcast(-0x1p15f - 128)),
            bits(0xff, 0x4b000080) - (0x1p23f + 128)};
  }
  SPLITSERVE_INLINE static FloatTileStep::Operand operand(const char* half, int vec, int pair) {
    return load(half + pair * Format::kStepBytes, vec);
  }
  SPLITSERVE_INLINE static void put_in_order(Vec (&sums)[kPanelVecs]) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const Vec even = sums[0], odd = sums[1];
    sums[0] = _mm512_permutex2var_ps(even, first, odd);
    sums[1] = _mm512_permutex2var_ps(even, second, odd);
  }
  // The opposite.
  SPLITSERVE_INLINE static Vec columns(const float* p, int vec) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(::splitserve::SPLITSERVE_ISA::load(p),
                                  _mm512_add_epi32(even, _mm512_set1_epi32(vec)),
                                  ::splitserve::SPLITSERVE_ISA::load(p + kLanes));
  }
};

template <typename Format>
using FloatForm =
    std::conditional_t<Format::kFormat == WeightFormat::kInt8 || Format::kFormat == WeightFormat::kInt8Groups,
                       FloatCodes<Format>, Format>;

}  // namespace splitserve::SPLITSERVE_ISA

#endif
