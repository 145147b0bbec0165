// Arguments of the kernel that adds adapters' deltas to the outputs of a linear layer.
#pragma once

#include "common/dtype.h"

namespace splitserve {

// Most adapters in memory.
inline constexpr int64_t kMaxAdapters = 256;
// Outputs that lie side by side in `b`; the last ones are padded with zeros.
inline constexpr int64_t kLoraCols = 64;

// A pair is as many neighbours along depth or rank as lie side by side: 2 bfloat16 where kPairedAdapters, as
// its products add up two at a time, else 1. Behind the last input and the last rank of an adapter are zeros.
//
// out[t] += scales[s] * (x[t] . a[s]) . b[s] with s = slots[t]; rows whose slot is negative stay as they are.
struct LoraParams {
  void* out;             // [rows, cols]
  const void* x;         // [rows, depth]
  const void* a;         // [adapters, ceil(depth / pair), rank, pair]
  const void* b;         // [adapters, ceil(cols / 64), rank / pair, 64, pair]
  const float* scales;   // [adapters]
  const int32_t* ranks;  // [adapters], of each at most `rank`; 0 for none
  const int32_t* slots;  // [rows]
  int32_t* order;        // [rows], overwritten
  float* inner;          // [rows, rank], overwritten
  int64_t out_stride, x_stride;
  int64_t a_stride, b_stride;  // between adapters
  int64_t rows, cols, depth, rank, adapters;
  DType dtype;      // of x, a and b
  DType out_dtype;  // the same, or float32
};

}  // namespace splitserve
