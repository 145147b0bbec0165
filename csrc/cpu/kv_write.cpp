// Writes this step's keys and values into their slots of the paged cache.
#include <cstring>

#include "common/check.h"
#include "cpu/parallel.h"

namespace splitserve {
namespace {

struct Cache {
  char* data;
  int64_t block_stride, head_stride, slot_stride;  // in bytes
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
      .rows_contiguous();
  return {static_cast<char*>(cache.data_ptr()), cache.stride(0) * element, cache.stride(1) * element,
          cache.stride(2) * element};
}

void copy_token(const TensorView& source, const Cache& cache, int64_t token, int64_t block, int64_t offset,
                int64_t element) {
  const char* row = static_cast<const char*>(source.data_ptr()) + token * source.stride(0) * element;
  for (int64_t head = 0; head < source.size(1); ++head) {
    std::memcpy(
        cache.data + block * cache.block_stride + head * cache.head_stride + offset * cache.slot_stride,
        row + head * source.stride(1) * element, static_cast<size_t>(source.size(2) * element));
  }
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
  host::parallel_for(tokens, tokens * k.size(1) * k.size(2), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t slot = slots[token];
      if (slot < 0) continue;
      copy_token(k, keys, token, slot / block_size, slot % block_size, element);
      copy_token(v, values, token, slot / block_size, slot % block_size, element);
    }
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kv_write, splitserve::kv_write);
