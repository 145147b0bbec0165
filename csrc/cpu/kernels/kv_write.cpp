// Writes this step's keys and values into their slots of the paged cache.
#include <cstring>

#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

void copy_token(const KvRows& rows, const KvSlots& cache, const KvWriteParams& p, int64_t token,
                int64_t slot) {
  const int64_t element = dtype_bytes(p.dtype);
  const char* source = static_cast<const char*>(rows.data) + token * rows.token_stride * element;
  char* target =
      static_cast<char*>(cache.data) +
      (slot / p.block_size * cache.block_stride + slot % p.block_size * cache.slot_stride) * element;
  for (int64_t head = 0; head < p.heads; ++head) {
    std::memcpy(target + head * cache.head_stride * element, source + head * rows.head_stride * element,
                static_cast<size_t>(p.head_dim * element));
  }
}

}  // namespace

void kv_write(const KvWriteParams& p) {
  parallel_for(p.tokens, p.tokens * p.heads * p.head_dim, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t slot = p.slot_mapping[token];
      if (slot < 0) continue;
      copy_token(p.k, p.k_cache, p, token, slot);
      copy_token(p.v, p.v_cache, p, token, slot);
    }
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
