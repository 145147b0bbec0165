// Reads the keys and values of a chunk as they are multiplied: where the cache has them, or, of codes, in
// decoded copies that are laid out as a plain cache is. So attention over E4M3 has the bits of attention over
// a cache of what the codes stand for.
#pragma once

#include "cpu/attention_state.h"
#include "cpu/cache_codes.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// The values of a chunk for the KV head that begins `offset` elements behind the one it points to.
template <typename T>
struct ChunkValues {
  const Chunk<T>& chunk;
  int64_t offset;
};

// In all of its functions `at` is the distance of a KV head from the one that the chunk was looked for, in
// elements of the cache. What they return is good until the next call of the same one.
template <typename T, typename Codes>
class ChunkReader {
 public:
  using Element = Code;

  explicit ChunkReader(const AttentionParams& params) : p(params) {
    std::memset(key_copies, 0, static_cast<size_t>(p.head_dim * kChunk) * sizeof(T));
    copies.key_stride = kChunk * kPair;
    for (int64_t v = 0; v < kChunk / kLanes; ++v) copies.keys[v] = key_copies + v * kLanes * kPair;
    for (int64_t pair = 0; pair < kChunk / kPair; ++pair)
      copies.values[pair] = value_copies + pair * kPair * p.head_dim;
  }

  Stream<T> keys(const Chunk<Code>& chunk, int64_t at, Range registers) {
    for (int64_t v = registers.begin; v < registers.end; ++v)
      decode_keys(bytes(chunk.keys[v] + at), chunk.key_stride, key_copies + v * kLanes * kPair);
    return Stream<T>::keys(copies, 0);
  }

  // Multiplies dot products with the keys, [rows, kChunk], with the keys' scales.
  void scale_keys(const Chunk<Code>& chunk, int64_t at, Range registers, float* dots, int64_t rows) {
    if constexpr (kHasScales) {
      for (int64_t v = registers.begin; v < registers.end; ++v) {
        // In place of a pair of dimensions.
        const Code* scales = chunk.keys[v] + at + p.head_dim / kPair * chunk.key_stride;
        const Vec scale = load(reinterpret_cast<const BFloat16*>(scales));
        for (int64_t row = 0; row < rows; ++row) {
          float* const dot = dots + row * kChunk + v * kLanes;
          store(dot, load(dot) * scale);
        }
      }
    }
  }

  ChunkValues<T> values(const Chunk<Code>& chunk, int64_t at, Range seen) {
    for (int64_t pair = seen.begin / kPair; pair * kPair < seen.end; ++pair) {
      decode<Codes>(bytes(chunk.values[pair] + at), value_copies + pair * kPair * p.head_dim,
                    kPair * p.head_dim);
    }
    return {copies, 0};
  }

  auto value_scales(const Chunk<Code>& chunk, int64_t at, Range seen) {
    if constexpr (!kHasScales) {
      return NoScales{};
    } else {
      uint32_t words[kChunk / kPair] = {};
      for (int64_t pair = seen.begin / kPair; pair * kPair < seen.end; ++pair)
        std::memcpy(words + pair, bytes(chunk.values[pair] + at) + kPair * p.head_dim, sizeof words[pair]);
      // The lower bytes of both positions, then the upper ones; a scale is the upper half of a float.
      uint32_t bits[kChunk];
      for (int64_t pair = 0; pair < kChunk / kPair; ++pair) {
        const uint32_t word = words[pair];
        bits[pair * kPair] = (word << 16 & 0xff0000u) | (word << 8 & 0xff000000u);
        bits[pair * kPair + 1] = (word << 8 & 0xff0000u) | (word & 0xff000000u);
      }
      std::memcpy(scales, bits, sizeof bits);
      return ValueScales{scales};
    }
  }

  static Stream<T> requests(const Stream<Code>& stream) {
    Stream<T> wanted{{}, stream.stride / 2};
    for (int v = 0; v < Stream<Code>::kPieces; ++v)
      wanted.pieces[v] = reinterpret_cast<const T*>(stream.pieces[v]);
    return wanted;
  }

 private:
  static constexpr int kPair = 2;
  static constexpr bool kHasScales = scale_bytes(Codes::kFormat) > 0;

  static const uint8_t* bytes(const Code* codes) { return &codes->bits; }

  // Of a register of positions; `stride` from one pair of dimensions to the next.
  void decode_keys(const uint8_t* from, int64_t stride, T* to) const {
    const int64_t steps = p.head_dim / kPair;
    int64_t step = 0;
#if defined(__AVX512BF16__)
    for (; step + 2 <= steps; step += 2) {
      T* const first = to + step * kChunk * kPair;
      decode_two<Codes>(from + step * stride, from + (step + 1) * stride, first, first + kChunk * kPair);
    }
#endif
    for (; step < steps; ++step)
      decode<Codes>(from + step * stride, to + step * kChunk * kPair, kLanes * kPair);
  }

  const AttentionParams& p;
  Chunk<T> copies;
  alignas(64) T key_copies[kMaxHeadDim * kChunk];    // [head_dim / kPair, kChunk, kPair]
  alignas(64) T value_copies[kChunk * kMaxHeadDim];  // [kChunk / kPair, head_dim, kPair]
  alignas(64) float scales[kChunk];                  // of values
};

template <typename T>
class ChunkReader<T, NoCodes> {
 public:
  using Element = T;

  explicit ChunkReader(const AttentionParams&) {}

  // Of the positions of some registers.
  Stream<T> keys(const Chunk<T>& chunk, int64_t at, Range) { return Stream<T>::keys(chunk, at); }
  void scale_keys(const Chunk<T>&, int64_t, Range, float*, int64_t) {}
  // Of some positions.
  ChunkValues<T> values(const Chunk<T>& chunk, int64_t at, Range) { return {chunk, at}; }
  NoScales value_scales(const Chunk<T>&, int64_t, Range) { return {}; }
  // As memory that is asked for ahead.
  static Stream<T> requests(const Stream<T>& stream) { return stream; }
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
