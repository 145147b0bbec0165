// Writes this step's keys and values into their slots of the paged cache.
#include <cstring>

#include "common/check.h"
#include "cpu/parallel.h"

namespace splitserve {
namespace {

// One cache; strides in bytes.
struct Cache {
  char* data;
  int64_t block_stride, head_stride, block_size;

  char* block_of(int64_t slot, int64_t head) const {
    return data + slot / block_size * block_stride + head * head_stride;
  }
};

Cache cache_of(const TensorView& cache, const char* name, DType dtype, const TensorView& k,
               const TensorView& like) {
  const int64_t element = dtype_bytes(dtype);
  cpu_arg(cache, name)
      .activation(dtype)
      .rank(4)
      .size(0, like.size(0))
      .size(1, k.size(1))
      .size(2, like.size(2))
      .size(3, k.size(2))
      .interleaved();
  return {static_cast<char*>(cache.data_ptr()), cache.stride(0) * element, cache.stride(1) * element,
          cache.size(2)};
}

const char* row_of(const TensorView& source, int64_t token, int64_t head, int64_t element) {
  return static_cast<const char*>(source.data_ptr()) +
         (token * source.stride(0) + head * source.stride(1)) * element;
}

// A key into its slot of [head_dim / pair, block_size, pair]; a pair has 4 bytes.
void write_key(char* block, int64_t offset, int64_t block_size, const char* key, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) std::memcpy(block + (i * block_size + offset) * 4, key + i * 4, 4);
}

// A value into its slot of [block_size / pair, head_dim, pair].
void write_value(char* block, int64_t offset, const char* value, int64_t size, int64_t element) {
  if (element == 4) {
    std::memcpy(block + offset * size * 4, value, static_cast<size_t>(size * 4));
    return;
  }
  // Two bytes at a time: another thread may be writing the other slot of the pair.
  char* to = block + (offset / 2 * size * 2 + offset % 2) * 2;
  for (int64_t i = 0; i < size; ++i) std::memcpy(to + i * 4, value + i * 2, 2);
}

void kv_write(TensorView k, TensorView v, TensorView k_cache, TensorView v_cache, TensorView slot_mapping) {
  const DType dtype = cpu_arg(k, "k").rank(3).rows_contiguous().activation();
  const int64_t tokens = k.size(0);
  cpu_arg(v, "v")
      .activation(dtype)
      .rank(3)
      .size(0, tokens)
      .size(1, k.size(1))
      .size(2, k.size(2))
      .rows_contiguous();
  cpu_arg(k_cache, "k_cache").rank(4);
  const Cache keys = cache_of(k_cache, "k_cache", dtype, k, k_cache);
  const Cache values = cache_of(v_cache, "v_cache", dtype, k, k_cache);
  const IndexArray slots = cpu_arg(slot_mapping, "slot_mapping").indices(tokens);
  const int64_t block_size = k_cache.size(2), num_slots = k_cache.size(0) * block_size;
  const int64_t element = dtype_bytes(dtype);
  for (int64_t token = 0; token < tokens; ++token) {
    SPLITSERVE_CHECK_VALUE(slots[token] < num_slots, "slot_mapping: " << slots[token]
                                                                      << " is outside the cache's "
                                                                      << num_slots << " slots");
  }
  const int64_t size = k.size(2);
  host::parallel_for(tokens, tokens * k.size(1) * size, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t slot = slots[token], offset = slot % block_size;
      if (slot < 0) continue;
      for (int64_t head = 0; head < k.size(1); ++head) {
        write_key(keys.block_of(slot, head), offset, block_size, row_of(k, token, head, element),
                  size * element / 4);
        write_value(values.block_of(slot, head), offset, row_of(v, token, head, element), size, element);
      }
    }
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kv_write, splitserve::kv_write);
