// Weights of linear layers as codes of 4 or 8 bits on a GPU: how they lie in memory, and the arguments of the
// kernels that read them.
//
// Panels of 32 outputs, and in them steps of inputs: a step is what a warp multiplies at once, and holds the
// operands of its mma instructions lane by lane, as far as 16 bytes go for one load.
//
//   4 bits:   packed[panel][step of 32 inputs][lane] = 4 words, one for 8 outputs
//   8 bits:   packed[panel][step of 32 inputs][2][lane] = 4 words, two for 8 outputs; int8, or E4M3 (FP8)
//   int8 for int8 activations: packed[panel][step of 64 inputs][4][lane] = 4 words, four for 8 outputs
//
// Lane l has the outputs l / 4 of every 8, and of the inputs the words l % 4 of every four: of the 64 bytes
// that a row of activations has in a step four words, 8 inputs of 16 bits or 16 of int8. An instruction takes
// 32 of these bytes, and so 16 or 32 inputs that follow each other.
//
// Of a lane's 8 codes of 4 bits those at 0, 2, 4, 6 are the nibbles of the lower half of the word, 1, 3, 5, 7
// of the upper half, lowest first. Of 4 codes of 8 bits the order of bytes is 0, 2, 1, 3; int8 for int8
// activations lies in order. What lies beyond the last output or input is zero.
//
// Scales of groups of 16, 32, 64 or 128 inputs are float32 [panel][group][1 or 2][32]: scales, and then what
// is added to code * scale. In each 32 of them output c of every 8 has four that follow each other. Codes of
// 4 bits without offsets are worth 8 less than they say. A weight without groups has a scale per output, in
// their order.
#pragma once

#include "common/dtype.h"

namespace splitserve {

enum class CodeFormat { kInt4, kInt8, kFp8, kInt8Dot };

inline constexpr int64_t kCodedCols = 32;
// A row's bytes in a step, and the bytes of the scales of a group.
inline constexpr int64_t kStepRowBytes = 64, kScaleRowBytes = kCodedCols * 4;
inline constexpr int64_t kSmallestCodedGroup = 16, kLargestCodedGroup = 128;
// What codes of 4 bits without offsets are stored plus.
inline constexpr int kCodedZero = 8;

inline constexpr int64_t step_inputs(CodeFormat format) { return format == CodeFormat::kInt8Dot ? 64 : 32; }

// Of a panel.
inline constexpr int64_t step_code_bytes(CodeFormat format) {
  switch (format) {
    case CodeFormat::kInt4:
      return 512;
    case CodeFormat::kInt8:
    case CodeFormat::kFp8:
      return 1024;
    case CodeFormat::kInt8Dot:
      return 2048;
  }
  return 0;
}

// A weight [experts * cols, depth]; each expert begins with a panel of its own.
struct CodedWeightArgs {
  const char* codes;    // panels
  const float* scales;  // of groups or, if there are none, [experts * cols]
  int64_t experts, cols, depth;
  int64_t panels, steps;  // of an expert, of a panel
  int64_t group;          // inputs that share a scale; 0: all
  int64_t groups;         // of a panel, those of padding included
  bool has_offsets;
  CodeFormat format;
};

struct CodedLinearParams {
  void* out;                // [rows, cols]
  const void* x;            // [rows, depth], 16 bits or int8; rows begin at multiples of 16 bytes
  const float* row_scales;  // [rows] of int8 activations
  const void* bias;         // [experts * cols] in `dtype` or nullptr
  const int32_t* starts;    // [experts + 1]: expert e has the rows starts[e] to starts[e + 1]; nullptr: one
  CodedWeightArgs weight;
  int64_t out_stride, x_stride;
  int64_t rows;
  DType dtype;      // of the activations
  DType out_dtype;  // the same or float32
};

struct CodedEmbeddingParams {
  void* out;             // [tokens, depth]
  IndexArray token_ids;  // [tokens]; an id outside the vocabulary makes its row NaN
  CodedWeightArgs weight;
  int64_t out_stride;
  int64_t tokens;
  DType dtype;
};

// A weight of one expert, written out.
struct CodedDenseParams {
  void* out;  // [cols, depth]
  CodedWeightArgs weight;
  int64_t out_stride;
  DType dtype;
};

// Rows of activations as multiples of their largest magnitude over 127.
struct CodeRowsParams {
  int8_t* codes;  // [rows, depth], rows at multiples of 16 bytes
  float* scales;  // [rows]; NaN or infinite if a number of the row is
  const void* x;  // [rows, depth]
  int64_t codes_stride, x_stride;
  int64_t rows, depth;
  DType dtype;
};

}  // namespace splitserve
