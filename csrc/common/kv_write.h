// Arguments of the kernels that write keys and values into the paged cache: as they are, or after the norms
// and the rotation of queries and keys.
#pragma once

#include "common/cache_format.h"
#include "common/dtype.h"

namespace splitserve {

// Queries, keys or values of a step, [tokens, heads, head_dim]. Strides are in elements.
struct HeadRows {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
  int64_t heads;
};

// A cache, [num_blocks, heads, block_size, head_dim]. Strides are in elements, of codes in bytes.
struct KvSlots {
  void* data;
  int64_t block_stride;
  int64_t head_stride;
  int64_t slot_stride;
};

struct KvWriteParams {
  HeadRows k;
  HeadRows v;
  KvSlots k_cache;
  KvSlots v_cache;
  IndexArray slot_mapping;  // [tokens]: block * block_size + offset; a negative slot is skipped
  int64_t tokens;
  int64_t head_dim;
  int64_t block_size;
  int64_t num_slots;
  DType dtype;  // of k and v
  CacheFormat format;
};

// How queries and keys are prepared before attention.
struct RotaryParams {
  const void* q_norm;  // [head_dim], weights of the RMS norm of each query; nullptr: none
  const void* k_norm;  // [head_dim], of each key
  float eps;
  float norm_offset;     // added to these weights
  IndexArray positions;  // [tokens]
  const float* cos_sin;  // [max_pos, rot_dim]: first half cosines, second half sines
  int64_t cos_sin_stride;
  int64_t max_pos;
  int64_t rot_dim;
};

// Queries are turned in place, and keys on their way into the cache; what `write.k` holds then is not
// defined.
struct RotaryKvWriteParams {
  HeadRows q;
  RotaryParams rotary;
  KvWriteParams write;
};

}  // namespace splitserve
