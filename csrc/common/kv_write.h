// Arguments of the kernel that writes keys and values into the paged cache.
#pragma once

#include "common/dtype.h"
#include "common/rotary.h"

namespace splitserve {

// New keys or values, [tokens, heads, head_dim]. Strides are in elements.
struct KvRows {
  const void* data;
  int64_t token_stride;
  int64_t head_stride;
};

// A cache, [num_blocks, heads, block_size, head_dim].
struct KvSlots {
  void* data;
  int64_t block_stride;
  int64_t head_stride;
  int64_t slot_stride;
};

struct KvWriteParams {
  KvRows k;
  KvRows v;
  KvSlots k_cache;
  KvSlots v_cache;
  IndexArray slot_mapping;  // [tokens]: block * block_size + offset; a negative slot is skipped
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t num_slots;
  DType dtype;
};

// The rotation of q and k, then the write of the rotated k.
struct RotaryKvWriteParams {
  RotaryParams rotary;
  KvWriteParams write;
};

}  // namespace splitserve
