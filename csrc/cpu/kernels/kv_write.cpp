// Writes this step's keys and values into their slots of the paged cache.
#include <cstring>

#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// The first byte of a token's key or value of one head.
const char* row_of(const KvRows& rows, int64_t token, int64_t head, int64_t element) {
  return static_cast<const char*>(rows.data) +
         (token * rows.token_stride + head * rows.head_stride) * element;
}

// The first byte of the block and head that hold a slot.
char* block_of(const KvSlots& cache, int64_t block, int64_t head, int64_t element) {
  return static_cast<char*>(cache.data) + (block * cache.block_stride + head * cache.head_stride) * element;
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

void write_token(const KvWriteParams& p, int64_t token, int64_t slot) {
  const int64_t element = dtype_bytes(p.dtype);
  const int64_t block = slot / p.block_size, offset = slot % p.block_size;
  for (int64_t head = 0; head < p.heads; ++head) {
    write_key(block_of(p.k_cache, block, head, element), offset, p.block_size,
              row_of(p.k, token, head, element), p.head_dim * element / 4);
    write_value(block_of(p.v_cache, block, head, element), offset, row_of(p.v, token, head, element),
                p.head_dim, element);
  }
}

}  // namespace

void kv_write(const KvWriteParams& p) {
  parallel_for(p.tokens, p.tokens * p.heads * p.head_dim, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t slot = p.slot_mapping[token];
      if (slot >= 0) write_token(p, token, slot);
    }
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
