// What codes are worth in the dtype of activations, a lane's words at once.
#pragma once

#include "cuda/coded_products.cuh"

namespace splitserve::cuda {

// A tile's 8 outputs within a weight.
struct TilePlace {
  int64_t panel;  // of the weight, whichever expert's
  int tile;       // of the panel
};

// Scales of an output for both halves of a step, and what is added.
struct StepScales {
  float scales[2], offsets[2];
};

// Output c of a tile; without groups `row` says which of the weight it is.
template <CodeFormat kFormat>
__device__ inline StepScales scales_of(const CodedWeightArgs& weight, const TilePlace& place, int c,
                                       int64_t row, int64_t step) {
  StepScales found{};
  if (weight.group == 0) {
    found.scales[0] = found.scales[1] = weight.scales[row];
    return found;
  }
  constexpr int64_t kInputs = step_inputs(kFormat);
  const int64_t kinds = weight.has_offsets ? 2 : 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t group = (step * kInputs + i * kInputs / 2) / weight.group;
    const float* own = weight.scales + (place.panel * weight.groups + group) * kinds * kCodedCols;
    found.scales[i] = own[c * kColTiles + place.tile];
    found.offsets[i] = weight.has_offsets ? own[kCodedCols + c * kColTiles + place.tile] : 0.0f;
  }
  return found;
}

// A lane's 8 values of an output in a step, by twos: which inputs they belong to, coded_linear.h says. Codes
// are read as bfloat16, which holds all of them.
template <typename Half, typename Codes>
__device__ inline void values_of(const Codes& codes, const uint32_t (&words)[Codes::kWords], bool has_offsets,
                                 const StepScales& by, uint32_t (&values)[4]) {
  uint32_t pairs[4];
  codes.unpack(words, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float two[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float product = to_float(BFloat16{static_cast<uint16_t>(pairs[i] >> 16 * j)}) * by.scales[i / 2];
      // Zeros keep their signs.
      two[j] = has_offsets ? product + by.offsets[i / 2] : product;
    }
    values[i] = pack_pair<Half>(two[0], two[1]);
  }
}

// Calls run<Codes>() for the codes of a weight that is not for activations of int8.
template <typename Run>
void with_codes(const CodedWeightArgs& weight, const Run& run) {
  switch (weight.format) {
    case CodeFormat::kInt4:
      return run.template operator()<Int4Codes<BFloat16>>();
    case CodeFormat::kInt8:
      return run.template operator()<Int8Codes<BFloat16>>();
    case CodeFormat::kFp8:
      return run.template operator()<Fp8Codes<BFloat16>>();
    case CodeFormat::kInt8Dot:
      return;
  }
}

}  // namespace splitserve::cuda
