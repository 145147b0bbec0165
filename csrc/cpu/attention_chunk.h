// Finds the keys and values of one chunk of positions in the paged cache.
//
// Within a block and KV head the cache is interleaved so that a register takes what a sum needs: keys as
// [head_dim / kPair, block_size, kPair], hence one register holds a pair of dimensions of several positions;
// values as [block_size / kPair, head_dim, kPair], hence one holds a pair of positions of several dimensions.
// Codes that have a scale are followed by its two bytes, as if these were two dimensions more.
#pragma once

#include "cpu/attention.h"
#include "cpu/dot_step.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Positions whose scores are turned into weights together. Chunks begin at multiples of it.
inline constexpr int64_t kChunk = 64;

inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// A range of positions relative to the start of a chunk; empty when begin >= end.
struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
  bool holds(int64_t x) const { return begin <= x && x < end; }
};

// An element of a cache of codes.
struct Code {
  uint8_t bits;
};

// Elements of the cache that lie side by side: of a key its dimensions, of values their positions.
template <typename T>
inline constexpr int kPairOf = 4 / sizeof(T);
template <>
inline constexpr int kPairOf<Code> = 2;

template <typename T>
struct Chunk {
  const T* keys[kChunk / kLanes];        // pair 0 of kLanes positions each
  int64_t key_stride;                    // from one pair of dimensions to the next
  const T* values[kChunk / kPairOf<T>];  // dimension 0 of a pair of positions each
};

// A chunk's keys or values of the KV head that begins `offset` elements behind the one that was looked for,
// as registers lie in memory: head_dim / kPair steps of each of a few pieces.
template <typename T>
struct Stream {
  static constexpr int kPieces = kChunk / kLanes;

  static Stream keys(const Chunk<T>& chunk, int64_t offset) {
    Stream stream{{}, chunk.key_stride};
    for (int v = 0; v < kPieces; ++v) stream.pieces[v] = chunk.keys[v] + offset;
    return stream;
  }

  static Stream values(const Chunk<T>& chunk, int64_t offset) {
    Stream stream{{}, kLanes * kPairOf<T>};
    for (int v = 0; v < kPieces; ++v) stream.pieces[v] = chunk.values[v * kLanes / kPairOf<T>] + offset;
    return stream;
  }

  // Asks for the memory of a step.
  SPLITSERVE_INLINE void fetch(int64_t step) const {
#pragma GCC unroll 16
    for (int v = 0; v < kPieces; ++v) __builtin_prefetch(pieces[v] + step * stride);
  }

  const T* pieces[kPieces];  // of kLanes positions each
  int64_t stride;
};

template <typename T>
class ChunkFinder {
 public:
  ChunkFinder(const AttentionParams& params, int64_t request, int64_t kv_head)
      : p(params),
        table(params.block_tables + request * params.block_table_stride),
        kv_head(kv_head),
        row(params.head_dim + scale_bytes(params.format)),
        is_direct(reads_in_place(params)) {
    if (!is_direct) std::memset(gathered, 0, sizeof gathered);
  }

  // Whether a chunk points into the cache, and not into this finder's copies.
  static bool reads_in_place(const AttentionParams& p) { return p.block_size % kLanes == 0; }

  // The chunk that begins at position `start`. Only blocks that hold a position of `needed` are touched: the
  // rest of the block table may be stale. What the chunk's keys say of other positions is undefined. The
  // chunk is good until the one after the next is asked for.
  void find(int64_t start, Range needed, Chunk<T>* chunk) {
    const int64_t align = is_direct ? kLanes : kPair;
    needed.begin = needed.begin / align * align;
    chunk->key_stride = (is_direct ? p.block_size : kChunk) * kPair;
    int64_t index = (start + needed.begin) / p.block_size, offset = (start + needed.begin) % p.block_size;
    // What is not needed has an address all the same.
    const T *keys = block_of(p.k, index), *values = block_of(p.v, index);
    T* const copy = gathered[start / kChunk % 2];
    for (int64_t v = 0; v < kChunk / kLanes; ++v)
      chunk->keys[v] = is_direct ? keys : copy + v * kLanes * kPair;
    for (int64_t pair = 0; pair < kChunk / kPair; ++pair) chunk->values[pair] = values;
    for (int64_t j = needed.begin; j < needed.end; ++index, offset = 0) {
      const int64_t count = min_of(p.block_size - offset, kChunk - j);
      if (is_direct) {
        point_to_keys(block_of(p.k, index), offset, j, count, chunk);
      } else {
        gather_keys(block_of(p.k, index), offset, j, count, copy);
      }
      point_to_values(block_of(p.v, index), offset, j, count, chunk);
      j += count;
    }
  }

 private:
  static constexpr int kPair = kPairOf<T>;

  // The block of the request's positions from index * block_size on.
  const T* block_of(const KvCache& cache, int64_t index) const {
    return static_cast<const T*>(cache.data) + table[index] * cache.block_stride +
           kv_head * cache.head_stride;
  }

  // Positions j to j + count of the chunk are positions `offset` and following of the block.
  void point_to_keys(const T* block, int64_t offset, int64_t j, int64_t count, Chunk<T>* chunk) const {
    for (int64_t i = 0; i < count; i += kLanes) chunk->keys[(j + i) / kLanes] = block + (offset + i) * kPair;
  }

  void gather_keys(const T* block, int64_t offset, int64_t j, int64_t count, T* copy) const {
    for (int64_t step = 0; step < row / kPair; ++step) {
      std::memcpy(copy + (step * kChunk + j) * kPair, block + (step * p.block_size + offset) * kPair,
                  static_cast<size_t>(count * kPair) * sizeof(T));
    }
  }

  void point_to_values(const T* block, int64_t offset, int64_t j, int64_t count, Chunk<T>* chunk) const {
    for (int64_t i = 0; i < count; i += kPair) chunk->values[(j + i) / kPair] = block + (offset + i) * row;
  }

  const AttentionParams& p;
  const int32_t* table;
  const int64_t kv_head;
  const int64_t row;  // elements of a key or value
  const bool is_direct;
  // Where blocks are no whole registers, keys of one chunk and the next, [row / kPair, kChunk, kPair].
  alignas(64) T gathered[2][(kMaxHeadDim + kMaxScaleBytes) * kChunk];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
