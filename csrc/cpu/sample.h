// Arguments of the sampling kernel.
#pragma once

#include "common/dtype.h"
#include "cpu/isa.h"

namespace splitserve {

struct SampleParams {
  int32_t* out_token_ids;    // [rows]
  const float* logits;       // [rows, vocab]
  const float* temperature;  // [rows]; 0: the most likely token
  const int32_t* top_k;      // [rows]; <= 0: off
  const float* top_p;        // [rows]; >= 1: off
  const float* min_p;        // [rows]; <= 0: off
  const int64_t* seeds;      // [rows]
  IndexArray positions;      // [rows]
  const uint32_t* masks;     // [num_masks, mask_words(vocab)]; nullptr: no row has one
  const int32_t* mask_rows;  // [rows]: the row's mask; negative: none
  int64_t logits_stride, masks_stride;
  int64_t rows, vocab, num_masks;
};

}  // namespace splitserve

SPLITSERVE_DECLARE_KERNEL(sample, SampleParams)
