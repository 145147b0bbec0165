// How a lane reads its part of an expert's columns, as they are or as codes of MXFP4.
//
// An instruction multiplies 16 inputs, of which a lane has four. Which ones is ours to say, as long as rows
// and columns agree: a lane's are the next four of a run of neighbours, so that it loads whole words of 16
// bytes. A step has the runs of four lanes, one behind the other.
//
// MXFP4 keeps a run of 32 inputs, which share a scale, in four words of 32 bits. Eight inputs are in a word,
// even ones in its lower half, odd ones in the upper. A half has, from its highest bit on, the signs of its
// codes 0, 2, 3 and 1, then the magnitudes of 3, 0, 1 and 2, of three bits each: the first pair lies as two
// bfloat16 want it, but for their scale, and the next ones are one or two shifts away.
#pragma once

#include "cuda/chunk.cuh"
#include "cuda/expert_linear.h"
#include "cuda/intrinsics.cuh"

namespace splitserve::cuda {

inline constexpr int kRunsPerStep = 4;

template <typename Half_, bool kAligned>
class PlainColumn {
 public:
  using Half = Half_;
  static constexpr int kRun = 8;
  using Run = Chunk;

  PlainColumn() = default;
  __device__ PlainColumn(const ExpertLinearParams& p, int64_t col)
      : inputs_(static_cast<const Half*>(p.weight) + col * p.depth), depth_(static_cast<int>(p.depth)) {}

  // The run of this number; zeros past the end.
  __device__ Run load(int run) const { return load_chunk<kAligned>(inputs_, run * kRun, depth_); }

  // The inputs of a run are multiplied by eights: those of one of them.
  __device__ static Chunk eight(const Run& run, int) { return run; }

 private:
  const Half* inputs_;
  int depth_;
};

class Mxfp4Column {
 public:
  using Half = BFloat16;
  static constexpr int kRun = 32;
  struct Run {
    uint4 codes;
    uint32_t scale;
  };

  Mxfp4Column() = default;
  __device__ Mxfp4Column(const ExpertLinearParams& p, int64_t col)
      : runs_(static_cast<int>((p.depth + kRun - 1) / kRun)),
        codes_(static_cast<const uint4*>(p.weight) + col * runs_),
        scales_(p.scales + col * runs_) {}

  __device__ Run load(int run) const {
    if (run >= runs_) return {};
    return {codes_[run], scales_[run]};
  }

  __device__ static Chunk eight(const Run& run, int index) {
    // A scale is the exponent of a power of two as a float has it.
    const uint32_t scale = run.scale * 0x00800080u;
    const uint32_t word = index == 0   ? run.codes.x
                          : index == 1 ? run.codes.y
                          : index == 2 ? run.codes.z
                                       : run.codes.w;
    return {scaled(word & kPair, scale), scaled(word << 3 & kPair, scale),
            scaled((word << 1 & kSigns) | (word << 6 & kMagnitudes), scale),
            scaled((word << 2 & kSigns) | (word >> 3 & kMagnitudes), scale)};
  }

 private:
  static constexpr uint32_t kSigns = 0x80008000u, kMagnitudes = 0x01c001c0u, kPair = kSigns | kMagnitudes;

  // Two exponents and a mantissa in their places are a 2^126th of the code's number. All this is exact.
  __device__ static uint32_t scaled(uint32_t pair, uint32_t scale) {
    constexpr uint32_t kWholeAgain = 0x7e807e80u;
    // -0 is added, which changes no bit.
    constexpr uint32_t kMinusZeros = 0x80008000u;
    return fma_pair<BFloat16>(fma_pair<BFloat16>(pair, kWholeAgain, kMinusZeros), scale, kMinusZeros);
  }

  int runs_;
  const uint4* codes_;
  const uint8_t* scales_;
};

}  // namespace splitserve::cuda
