// Codes of 8 bits in which the cache keeps bfloat16: how they are made, and how they become bfloat16 again.
//
// The codes are those of csrc/cpu/cache_codes.h, bit by bit. Of each block and head the cache has the rows of
// codes, slot by slot, then, with kInt8, the slots' scales in bfloat16.
#pragma once

#include <bit>

#include "common/cache_format.h"
#include "cuda/intrinsics.cuh"

namespace splitserve::cuda {

inline constexpr uint32_t kCodeSign = 128, kCodeMagnitude = 127;

// Where a slot's codes begin within a block and head, and where its scale is; in bytes.
__device__ inline int64_t codes_at(int64_t slot, int64_t head_dim) { return slot * head_dim; }
__device__ inline int64_t scale_at(int64_t slot, int64_t head_dim, int64_t block_size) {
  return block_size * head_dim + slot * kMaxScaleBytes;
}

// Of a float without its sign: among these, more has greater bits, and a NaN the greatest.
__device__ inline uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }
__device__ inline uint32_t code_sign(float x) { return std::bit_cast<uint32_t>(x) >> 24 & kCodeSign; }

// Integers in units of a scale of their row, the least bfloat16 with which no number is above 127 of it. A
// row with a NaN or an infinity has the scale NaN.
class Int8Codes {
 public:
  // `greatest`: magnitude_bits of the row. What lies below 2^-100 is made zero.
  __device__ explicit Int8Codes(uint32_t greatest) {
    constexpr uint32_t kLeast = (127 - 100) << 23, kInfinity = 0x7f800000u, kNan = 0x7fc00000u;
    scale_bits_ = greatest >= kInfinity ? kNan : 0, inverse_ = 0.0f;
    if (greatest < kLeast || greatest >= kInfinity) return;
    const uint32_t exact = std::bit_cast<uint32_t>(std::bit_cast<float>(greatest) / 127.0f);
    scale_bits_ = (exact + 0xffffu) & 0xffff0000u;
    inverse_ = 1.0f / std::bit_cast<float>(scale_bits_);
  }

  __device__ uint32_t encode(float x) const {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
    const float units = std::bit_cast<float>(magnitude_bits(x)) * inverse_ + kRound;
    // A GPU's NaN has all bits set, that of a CPU none of these.
    const uint32_t integer = units == units ? std::bit_cast<uint32_t>(units) & kCodeMagnitude : 0u;
    return integer | code_sign(x);
  }

  __device__ uint16_t scale() const { return static_cast<uint16_t>(scale_bits_ >> 16); }

 private:
  uint32_t scale_bits_;
  float inverse_;
};

// E4M3: what is greater than 448 becomes that, a NaN stays one.
class Fp8Codes {
 public:
  static constexpr uint32_t kNan = 127;

  __device__ explicit Fp8Codes(uint32_t) {}

  __device__ uint32_t encode(float x) const {
    constexpr float kGreatest = 448.0f, kLeastNormal = 0.015625f;
    constexpr float kRoundSmall = 16384.0f;  // 2^14: adding it leaves multiples of 2^-9 in the low bits
    constexpr uint32_t kExponents = (127 - 7) << 3;
    if (x != x) return kNan | code_sign(x);
    const float magnitude = fminf(std::bit_cast<float>(magnitude_bits(x)), kGreatest);
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    const uint32_t normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - kExponents;
    const uint32_t small = std::bit_cast<uint32_t>(magnitude + kRoundSmall) & 15u;
    return (magnitude < kLeastNormal ? small : normal) | code_sign(x);
  }
};

// Codes 2 * index and 2 * index + 1 of eight, in the lower bytes of a word's halves.
__device__ inline uint32_t code_pair(uint2 codes, int index) {
  return __byte_perm(index < 2 ? codes.x : codes.y, 0, index % 2 == 0 ? 0x4140 : 0x4342);
}
__device__ inline uint32_t pair_signs(uint32_t codes) { return (codes & 0x00800080u) << 8; }

// A pair of bfloat16: the numbers of a pair of integers times their scale, a bfloat16 in both halves.
__device__ inline uint32_t int8_numbers(uint32_t codes, uint32_t scales) {
  // With the integer as its fraction a number from 128 on is that much above 128.
  constexpr uint32_t k128 = 0x43004300u, kMinus128 = 0xc300c300u, kOnes = 0x3f803f80u;
  const uint32_t integers = fma_pair<BFloat16>((codes & 0x007f007fu) | k128, kOnes, kMinus128);
  return multiply_pairs(integers, scales) ^ pair_signs(codes);
}

// The numbers of a pair of E4M3.
__device__ inline uint32_t fp8_numbers(uint32_t codes) {
  // Exponent and mantissa in their places are a 2^120th of the number.
  constexpr uint32_t kWholeAgain = 0x7b807b80u;
  uint32_t numbers = multiply_pairs((codes & 0x007f007fu) << 4, kWholeAgain);
  // A carry into the eighth bit: a magnitude of 127.
  const uint32_t nan = ((codes & 0x007f007fu) + 0x00010001u) & 0x00800080u;
  if (nan != 0) numbers |= (nan >> 7) * 0x7fc0u;
  return numbers | pair_signs(codes);
}

}  // namespace splitserve::cuda
