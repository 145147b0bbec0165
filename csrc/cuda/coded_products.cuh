// How codes become operands of mma instructions, exactly, and what a warp multiplies in a step.
#pragma once

#include "cuda/chunk.cuh"
#include "cuda/coded_linear.h"
#include "cuda/intrinsics.cuh"

namespace splitserve::cuda {

// Columns of 8 that one instruction takes, of a panel.
inline constexpr int kColTiles = kCodedCols / 8;
// A word of two ones.
template <typename Half>
inline constexpr uint32_t kOnes = std::same_as<Half, BFloat16> ? 0x3f803f80u : 0x3c003c00u;

// What a lane holds of the sums of 16 rows and 32 columns: rows lane / 4 (and + 8), of every 8 columns those
// from 2 * (lane % 4) on.
template <typename Sum>
using TileSums = Sum[kColTiles][4];

// Codes of 4 bits. An operand is what it says minus kCodedZero or 0; a lane whose inputs do not count has
// zeros.
template <typename Half>
struct Int4Codes {
  static constexpr CodeFormat kFormat = CodeFormat::kInt4;
  static constexpr bool kIsBFloat16 = std::same_as<Half, BFloat16>;
  // The code is in the lowest bits of a number whose last place is worth 1.
  static constexpr uint32_t kBase = kIsBFloat16 ? 0x43004300u : 0x64006400u;
  // Minus 128 or 1024, and the same less 8.
  static constexpr uint32_t kMinusBase = kIsBFloat16 ? 0xc300c300u : 0xe400e400u;
  static constexpr uint32_t kMinusZero = kIsBFloat16 ? 0xc308c308u : 0xe408e408u;

  __device__ Int4Codes(bool counts, bool has_offsets)
      : factor_(counts ? kOnes<Half> : 0u),
        base_(!counts       ? 0u
              : has_offsets ? kMinusBase
                            : kMinusZero) {}

  // The operands of 8 outputs.
  __device__ void unpack(const Chunk (&codes)[1], int tile, uint32_t (&b)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      b[i] = fma_pair<Half>(((codes[0].words[tile] >> (4 * i)) & 0x000f000fu) | kBase, factor_, base_);
    }
  }

 private:
  uint32_t factor_, base_;
};

// Codes of 8 bits by Pairs::pair(bytes 0 and 2 of a word).
template <typename Pairs>
struct ByteCodes {
  __device__ ByteCodes(bool counts, bool) : mask_(counts ? ~0u : 0u) {}

  __device__ void unpack(const Chunk (&codes)[2], int tile, uint32_t (&b)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = codes[tile / 2].words[tile % 2 * 2 + i] & mask_;
      b[2 * i] = Pairs::pair(word);
      b[2 * i + 1] = Pairs::pair(word >> 8);
    }
  }

 private:
  // A code of zeros is worth zero.
  uint32_t mask_;
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

// A step in shared memory, as this lane sees it.
struct StepView {
  const char* rows;     // its 16 bytes of the first row; others follow at multiples of kStepRowBytes
  const char* codes;    // its 16 bytes of the first part of the panel's codes
  const float* scales;  // its 8 of the first of the step's groups
};

template <int kParts>
__device__ inline void load_codes(const StepView& step, Chunk (&codes)[kParts]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) codes[i] = *reinterpret_cast<const Chunk*>(step.codes + 512 * i);
}

// This lane's operands of 16 rows, of two instructions.
struct RowOperands {
  uint32_t first[4], second[4];

  __device__ RowOperands(const StepView& step, int row_tile) {
    const char* at = step.rows + row_tile * 16 * kStepRowBytes;
    const Chunk low = *reinterpret_cast<const Chunk*>(at);
    const Chunk high = *reinterpret_cast<const Chunk*>(at + 8 * kStepRowBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first[2 * i] = low.words[i], first[2 * i + 1] = high.words[i];
      second[2 * i] = low.words[2 + i], second[2 * i + 1] = high.words[2 + i];
    }
  }
};

// Steps of activations of 16 bits. Without groups products are added to the sums as they are; else those of a
// group within a step are summed from zero, and multiplied with its scale.
template <typename Half_, typename Codes_, bool kHasGroups>
struct CodedProduct {
  using Half = Half_;
  using Codes = Codes_;
  using Sum = float;
  static constexpr CodeFormat kFormat = Codes::kFormat;
  static constexpr bool kHasScales = kHasGroups;
  static constexpr int kParts = step_code_bytes(kFormat) / 512;

  // Of a step in which there are one or two groups.
  template <int kRowTiles>
  __device__ static void multiply(const CodedWeightArgs& weight, const StepView& step, int lane,
                                  TileSums<Sum> (&sums)[kRowTiles]) {
    Chunk codes[kParts];
    load_codes(step, codes);
    if constexpr (!kHasGroups) {
      add_products<kRowTiles>(step, Codes(true, false), codes, sums);
    } else {
      const int groups = weight.group < step_inputs(kFormat) ? 2 : 1;
      const float* scales = step.scales;
      for (int i = 0; i < groups; ++i) {
        // Which of two groups a lane's inputs are in.
        const bool counts = groups == 1 || lane % 4 / 2 == i;
        add_group<kRowTiles>(step, Codes(counts, weight.has_offsets), codes, scales, sums);
        scales += kCodedCols;
        if (!weight.has_offsets) continue;
        add_offsets<kRowTiles>(step, counts ? kOnes<Half> : 0u, scales, sums);
        scales += kCodedCols;
      }
    }
  }

 private:
  template <int kRowTiles>
  __device__ static void add_products(const StepView& step, const Codes& unpacker,
                                      const Chunk (&codes)[kParts], TileSums<Sum> (&sums)[kRowTiles]) {
    uint32_t b[kColTiles][4];
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) unpacker.unpack(codes, tile, b[tile]);
#pragma unroll
    for (int row = 0; row < kRowTiles; ++row) {
      const RowOperands a(step, row);
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
        mma<Half>(sums[row][tile], a.first, b[tile][0], b[tile][1]);
        mma<Half>(sums[row][tile], a.second, b[tile][2], b[tile][3]);
      }
    }
  }

  template <int kRowTiles>
  __device__ static void add_group(const StepView& step, const Codes& unpacker, const Chunk (&codes)[kParts],
                                   const float* scales, TileSums<Sum> (&sums)[kRowTiles]) {
    uint32_t b[kColTiles][4];
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) unpacker.unpack(codes, tile, b[tile]);
    float own[2 * kColTiles];
    load_scales(scales, own);
#pragma unroll
    for (int row = 0; row < kRowTiles; ++row) {
      const RowOperands a(step, row);
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
        float part[4];
        mma_from_zero<Half>(part, a.first, b[tile][0], b[tile][1]);
        mma<Half>(part, a.second, b[tile][2], b[tile][3]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[row][tile][j] = fmaf(part[j], own[2 * tile + j % 2], sums[row][tile][j]);
        }
      }
    }
  }

  // Offsets times the sums of a row's inputs, which are its products with ones.
  template <int kRowTiles>
  __device__ static void add_offsets(const StepView& step, uint32_t ones, const float* offsets,
                                     TileSums<Sum> (&sums)[kRowTiles]) {
    float own[2 * kColTiles];
    load_scales(offsets, own);
#pragma unroll
    for (int row = 0; row < kRowTiles; ++row) {
      const RowOperands a(step, row);
      float part[4];
      mma_from_zero<Half>(part, a.first, ones, ones);
      mma<Half>(part, a.second, ones, ones);
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[row][tile][j] = fmaf(part[j], own[2 * tile + j % 2], sums[row][tile][j]);
        }
      }
    }
  }

  __device__ static void load_scales(const float* scales, float (&own)[2 * kColTiles]) {
#pragma unroll
    for (int i = 0; i < kColTiles / 2; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(scales + 4 * i);
      own[4 * i] = four.x, own[4 * i + 1] = four.y, own[4 * i + 2] = four.z, own[4 * i + 3] = four.w;
    }
  }
};

// Steps of int8 activations and weights: exact sums of integers.
struct DotProduct {
  using Sum = int32_t;
  static constexpr CodeFormat kFormat = CodeFormat::kInt8Dot;
  static constexpr bool kHasScales = false;

  template <int kRowTiles>
  __device__ static void multiply(const CodedWeightArgs&, const StepView& step, int,
                                  TileSums<Sum> (&sums)[kRowTiles]) {
    Chunk codes[kColTiles];
    load_codes(step, codes);
#pragma unroll
    for (int row = 0; row < kRowTiles; ++row) {
      const RowOperands a(step, row);
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
        const uint32_t* b = codes[tile].words;
        mma_int8(sums[row][tile], a.first, b[0], b[1]);
        mma_int8(sums[row][tile], a.second, b[2], b[3]);
      }
    }
  }
};

}  // namespace splitserve::cuda
