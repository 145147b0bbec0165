// How codes become operands of matrix instructions, exactly, and what a warp or a warpgroup multiplies in a
// step.
#pragma once

#include "cuda/chunk.cuh"
#include "cuda/coded_linear.h"
#include "cuda/intrinsics.cuh"
#include "cuda/row_lines.h"

namespace splitserve::cuda {

// Columns of 8 that one instruction takes, of a panel.
inline constexpr int kColTiles = kCodedCols / 8;
// A word of two ones.
template <typename Half>
inline constexpr uint32_t kOnes = std::same_as<Half, BFloat16> ? 0x3f803f80u : 0x3c003c00u;

// Codes of 4 bits, of which an output has a word per lane. An operand is what it says minus kCodedZero or 0.
template <typename Half>
class Int4Codes {
 public:
  static constexpr CodeFormat kFormat = CodeFormat::kInt4;
  static constexpr int kWords = 1;

  __device__ explicit Int4Codes(bool has_offsets) : base_(has_offsets ? kMinusBase : kMinusZero) {}

  __device__ void unpack(const uint32_t (&words)[kWords], uint32_t (&operands)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      operands[i] = fma_pair<Half>(((words[0] >> (4 * i)) & 0x000f000fu) | kBase, kOnes<Half>, base_);
    }
  }

 private:
  static constexpr bool kIsBFloat16 = std::same_as<Half, BFloat16>;
  // The code is in the lowest bits of a number whose last place is worth 1.
  static constexpr uint32_t kBase = kIsBFloat16 ? 0x43004300u : 0x64006400u;
  // Minus 128 or 1024, and the same less 8.
  static constexpr uint32_t kMinusBase = kIsBFloat16 ? 0xc300c300u : 0xe400e400u;
  static constexpr uint32_t kMinusZero = kIsBFloat16 ? 0xc308c308u : 0xe408e408u;

  uint32_t base_;
};

// Codes of 8 bits by Pairs::pair(bytes 0 and 2 of a word).
template <typename Pairs>
struct ByteCodes {
  static constexpr int kWords = 2;

  __device__ explicit ByteCodes(bool) {}

  __device__ void unpack(const uint32_t (&words)[kWords], uint32_t (&operands)[4]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      operands[2 * i] = Pairs::pair(words[i]);
      operands[2 * i + 1] = Pairs::pair(words[i] >> 8);
    }
  }
};

template <typename Half>
struct Int8Pairs {
  __device__ static uint32_t pair(uint32_t word) {
    if constexpr (std::same_as<Half, BFloat16>) {
      // 128 and the lower 7 bits, less 128 or, of a negative one, 256: two's complement.
      const uint32_t low = (word & 0x007f007fu) | 0x43004300u, less = (word & 0x00800080u) | 0x43004300u;
      constexpr uint32_t kMinusOnes = 0xbf80bf80u;
      return fma_pair<Half>(less, kMinusOnes, low);
    } else {
      // 1024 and the code plus 128, less 1152.
      return fma_pair<Half>((word & 0x00ff00ffu) ^ 0x64806480u, kOnes<Half>, 0xe480e480u);
    }
  }
};

// E4M3: exponent and fraction in the places of a wider number's are worth a power of two less, subnormal ones
// too.
template <typename Half>
struct Fp8Pairs {
  __device__ static uint32_t pair(uint32_t word) {
    constexpr bool kIsBFloat16 = std::same_as<Half, BFloat16>;
    constexpr int kShift = kIsBFloat16 ? 4 : 7;
    // 2^120 or 2^8.
    constexpr uint32_t kFactor = kIsBFloat16 ? 0x7b807b80u : 0x5c005c00u, kMinusZeros = 0x80008000u;
    const uint32_t number = (word & 0x00800080u) << 8 | (word & 0x007f007fu) << kShift;
    return fma_pair<Half>(number, kFactor, kMinusZeros);
  }
};

template <typename Half>
struct Int8Codes : ByteCodes<Int8Pairs<Half>> {
  static constexpr CodeFormat kFormat = CodeFormat::kInt8;
  using ByteCodes<Int8Pairs<Half>>::ByteCodes;
};

template <typename Half>
struct Fp8Codes : ByteCodes<Fp8Pairs<Half>> {
  static constexpr CodeFormat kFormat = CodeFormat::kFp8;
  using ByteCodes<Fp8Pairs<Half>>::ByteCodes;
};

// Operands as they are.
struct DotCodes {
  static constexpr CodeFormat kFormat = CodeFormat::kInt8Dot;
  static constexpr int kWords = 4;

  __device__ explicit DotCodes(bool) {}

  __device__ void unpack(const uint32_t (&words)[kWords], uint32_t (&operands)[4]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) operands[i] = words[i];
  }
};

// A stage in shared memory: some steps.
struct StageView {
  const char* rows;     // as row_lines.h says
  const char* codes;    // this lane's 16 bytes of the first part of the panel's codes
  const float* scales;  // of the first of the stage's groups
  bool ends_group;      // the sums of the group that the stage is in are whole
};

// The words of some tiles of 8 outputs, from a step's codes.
template <int kTiles, int kWords>
__device__ inline void load_codes(const char* codes, int first_tile, uint32_t (&words)[kTiles][kWords]) {
  static_assert(kTiles * kWords >= 2);
  if constexpr (kTiles * kWords == 2) {
    const uint2 own = *reinterpret_cast<const uint2*>(codes + first_tile * 4);
    words[0][0] = own.x, words[1][0] = own.y;
  } else {
#pragma unroll
    for (int i = 0; i < kTiles * kWords; i += 4) {
      const Chunk own = *reinterpret_cast<const Chunk*>(codes + 128 * (first_tile * kWords + i));
#pragma unroll
      for (int j = 0; j < 4; ++j) words[(i + j) / kWords][(i + j) % kWords] = own.words[j];
    }
  }
}

// What the two instructions of a step take as the operand with 16 rows.
struct Operands {
  uint32_t first[4], second[4];
};

// Of 16 outputs.
__device__ inline Operands as_rows(const uint32_t (&upper)[4], const uint32_t (&lower)[4]) {
  return {{upper[0], lower[0], upper[1], lower[1]}, {upper[2], lower[2], upper[3], lower[3]}};
}

// Which of a step's inputs are multiplied: those of both instructions or of one.
enum class Inputs { kAll, kFirst, kSecond };

// Weights of codes for rows of Element: bfloat16, float16 or int8. Without groups products are added to the
// sums as they are; else those of a group are summed from zero, and multiplied with its scale. Of a stage all
// groups' products come first and then what their offsets add, which are multiplied with the sums of rows:
// products with ones.
template <typename Element_, typename Codes_, bool kHasGroups_>
struct CodedProduct {
  using Element = Element_;
  using Codes = Codes_;
  // Sums of integers are exact.
  static constexpr bool kIsExact = std::same_as<Element, int8_t>;
  static constexpr bool kHasGroups = kHasGroups_;
  using Sum = std::conditional_t<kIsExact, int32_t, float>;
  static constexpr CodeFormat kFormat = Codes::kFormat;
  static constexpr int kCodeBytes = static_cast<int>(step_code_bytes(kFormat));
  static constexpr int kInputs = static_cast<int>(step_inputs(kFormat));
  // A stage's codes are 1 to 2 KiB per panel.
  static constexpr int kStageSteps = kFormat == CodeFormat::kInt8Dot ? 1 : 2;
  static constexpr int kStageInputs = kStageSteps * kInputs;
  // Of a row.
  static constexpr int kLineBytes = kStageSteps * static_cast<int>(kStepRowBytes);

  template <int kTiles>
  __device__ static void unpack(bool has_offsets, const char* codes, int first_tile,
                                uint32_t (&operands)[kTiles][4]) {
    uint32_t words[kTiles][Codes::kWords];
    load_codes(codes, first_tile, words);
    const Codes unpacker(has_offsets);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) unpacker.unpack(words[tile], operands[tile]);
  }

  template <Inputs kWhich>
  __device__ static void add(Sum (&sums)[4], const Operands& a, const uint32_t (&b)[4]) {
    if constexpr (kIsExact) {
      mma_int8(sums, a.first, b[0], b[1]);
      mma_int8(sums, a.second, b[2], b[3]);
    } else {
      if constexpr (kWhich != Inputs::kSecond) mma<Element>(sums, a.first, b[0], b[1]);
      if constexpr (kWhich != Inputs::kFirst) mma<Element>(sums, a.second, b[2], b[3]);
    }
  }

  __device__ static Operands all_ones() {
    constexpr uint32_t kOne = kOnes<Element>;
    return {{kOne, kOne, kOne, kOne}, {kOne, kOne, kOne, kOne}};
  }
};

using DotProduct = CodedProduct<int8_t, DotCodes, false>;

// Calls multiply<Inputs>(step, index of the group in the stage) for each of a stage's groups that end within
// it.
template <typename Product, typename Multiply>
__device__ inline void for_groups(const CodedWeightArgs& weight, const Multiply& multiply) {
#pragma unroll
  for (int step = 0; step < Product::kStageSteps; ++step) {
    if (weight.group == kSmallestCodedGroup) {
      multiply.template operator()<Inputs::kFirst>(step, 2 * step);
      multiply.template operator()<Inputs::kSecond>(step, 2 * step + 1);
    } else {
      multiply.template operator()<Inputs::kAll>(step, step);
    }
  }
}

// The scales of a stage's group, and what is added: kCodedCols behind.
__device__ inline const float* group_scales(const CodedWeightArgs& weight, const StageView& stage,
                                            int group) {
  return stage.scales + group * (weight.has_offsets ? 2 : 1) * kCodedCols;
}

}  // namespace splitserve::cuda
