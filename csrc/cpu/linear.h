// Arguments of the linear layer kernel.
#pragma once

#include "common/activation.h"
#include "common/dtype.h"
#include "common/weight_format.h"
#include "cpu/group_scales.h"
#include "cpu/isa.h"

namespace splitserve {

// Rows of x as integers of 8 bits with a scale each.
struct RowCodes {
  const void* codes;    // [rows, depth] of Dot::Input (int8_dot.h), zeros up to a multiple of kDotDepth
  const float* scales;  // [rows]
  const int32_t*
      zeros;  // [rows]: 128 times the sum of a row, which products with stored weights have too much
};

// Rows of x as floats; the neighbours of a pair may have changed their places, see row_floats.h.
struct RowFloats {
  const float* floats;  // [inputs, rows, stride], see ExpertLinearParams::num_inputs; nullptr: there are none
  int64_t stride;
};

// Rows of x as integers of 16 or 8 bits, in blocks of inputs; see row_words.h.
struct RowWords {
  const char* words;    // [stretches, rows, 128]: a stretch of inputs is whole blocks
  const float* scales;  // [blocks, stride]: what an integer of a block is worth
  // [blocks, parts, stride]:
  const int32_t* first;  // what sums begin with, for what products with the bytes of weights have too much
  const int32_t* rest;   // and what is added to them; see word_dot.h
  const float* sums;     // of the inputs
  int64_t rows;          // that there is room for
  int64_t stride;
  int64_t depth;  // inputs of a block
  int64_t blocks;
  int64_t parts;  // of a block: its groups, where several share what an integer is worth
};

// What becomes of a sum and its bias.
enum class Epilogue { kNone, kGelu, kGeluTanh };

struct LinearParams {
  void* out;            // [rows, cols]
  const void* x;        // [rows, depth]
  const void* weight;   // packed, see packed.h
  const float* scales;  // [cols] for int8 and int8 dot, else nullptr
  GroupScales groups;   // of codes in groups
  RowCodes codes;       // of x for int8 dot, made on the way
  RowFloats floats;     // of x, where they are multiplied with weights as floats
  RowWords words;       // of x, where they are multiplied with codes of weights
  const void* bias;     // [cols] or nullptr
  int64_t out_stride;
  int64_t x_stride;
  int64_t first_row, first_col;  // of the output that lies at `out`
  bool is_part;                  // `out` has room for some outputs alone, which are used at once
  bool takes_bytes;              // x becomes integers of 8 bits where it becomes integers; see word_dot.h
  int64_t rows;
  int64_t cols;
  int64_t depth;
  WeightFormat format;
  DType out_dtype;
  Epilogue epilogue;
};

// The same with as many weights as there are experts, each with rows of its own. An expert without rows is
// not read.
struct ExpertLinearParams {
  LinearParams linear;    // of all rows; weight, scales and bias are those of expert 0, the others follow
  const int32_t* starts;  // [experts + 1]: expert e has the rows starts[e] to starts[e + 1]; nullptr: each
                          // has all of them, at the distances below from those of expert 0
  int64_t experts;
  int64_t x_expert_stride, out_expert_stride;  // 0 with `starts`

  // Matrices that are multiplied: one, in which each expert has rows, or one for each.
  int64_t num_inputs() const { return starts == nullptr ? experts : 1; }
  int64_t first_row(int64_t expert) const { return starts == nullptr ? 0 : starts[expert]; }
  int64_t end_row(int64_t expert) const { return starts == nullptr ? linear.rows : starts[expert + 1]; }
};

// The same, of whose outputs the first half are gates: an activation of each times the other half is written.
struct GatedLinearParams {
  ExpertLinearParams products;  // without out, out_stride and out_dtype
  void* out;                    // [rows, cols / 2], whole panels, dtype of x
  int64_t out_stride;
  Activation kind;  // kSiluAndMul, kGeluAndMul or kGeluTanhAndMul
};

}  // namespace splitserve

SPLITSERVE_DECLARE_DOT_KERNEL(linear, LinearParams)
SPLITSERVE_DECLARE_DOT_KERNEL(expert_linear, ExpertLinearParams)
SPLITSERVE_DECLARE_DOT_KERNEL(gated_linear, GatedLinearParams)
