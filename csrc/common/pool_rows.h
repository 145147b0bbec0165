// Arguments of the kernel that reduces the hidden states of each row's tokens, however many steps they take.
#pragma once

#include "common/dtype.h"

namespace splitserve {

enum class Pool : int32_t {
  kSum,
  kWeightedSum,  // a token's state counts as often as its position, from 1 on
  kMax,
};

struct PoolRowsParams {
  float* totals;             // [num_rows, size], of each row of the batch
  const void* states;        // [tokens, size]
  const int32_t* ends;       // [runs + 1]: run r is states ends[r] to ends[r + 1]
  const int32_t* rows;       // [runs], which totals are a run's; no two are the same
  const int32_t* positions;  // [runs], of a run's first token; 0: there is no total yet
  int64_t totals_stride, states_stride;
  int64_t num_rows, tokens, runs, size;
  Pool kind;
  DType dtype;  // of states
};

}  // namespace splitserve
