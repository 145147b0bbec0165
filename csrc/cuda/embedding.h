// Arguments of the embedding lookup on a GPU.
#pragma once

#include "common/dtype.h"

namespace splitserve {

struct EmbeddingParams {
  void* out;             // [tokens, hidden]
  const void* weight;    // [vocab, hidden]
  IndexArray token_ids;  // [tokens]; an id outside the vocabulary makes its row NaN
  int64_t out_stride;
  int64_t weight_stride;
  int64_t tokens;
  int64_t vocab;
  int64_t hidden;
  DType dtype;
};

}  // namespace splitserve
