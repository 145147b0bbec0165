// How many thread blocks share a row of logits, and whether they keep it in shared memory.
#pragma once

#include "cuda/launch.h"
#include "cuda/vocab_row.cuh"

namespace splitserve::cuda {

struct VocabLaunch {
  LaunchShape shape;
  bool is_cached;
};

// For `rows` rows of `vocab` logits on the current device.
VocabLaunch vocab_launch(int64_t rows, int vocab);

}  // namespace splitserve::cuda
