// The two products of latent attention: the rows of a tile with the cached rows of one chunk, and their
// weights with the latents in them.
//
// A cached row is a key and a value at once, and lies in memory as it is. So scores are summed up with a
// row's queries in the lanes and the cached row broadcast, or, by AMX, with cached rows on the left; for the
// weighted sum two positions each are brought together first, once for all rows of the tile. Each sum is a
// lane of its own, added up in one order: its bits depend on the row alone.
#pragma once

#include <type_traits>

#include "cpu/amx.h"
#include "cpu/attention_products.h"
#include "cpu/latent_attention.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows of a tile: those of all heads of a few tokens, so that what is done once per chunk counts little.
inline constexpr int64_t kLatentRows = 64;

// Cached rows of a chunk, as far as they are seen, and those to ask for meanwhile.
template <typename T>
struct LatentChunk {
  const T* rows[kChunk];
  int64_t count;
  const T* ahead[kChunk];
  int64_t num_ahead;

  // Has the line that holds these elements of rows [first, first + rows) of the next chunk fetched.
  SPLITSERVE_INLINE void fetch(int64_t first, int64_t rows, int64_t element) const {
    for (int64_t j = first; j < first + rows && j < num_ahead; ++j)
      __builtin_prefetch(ahead[j] + element, 0, 2);
  }
};

// Sizes of a tile.
struct LatentShape {
  int64_t width;   // of a cached row
  int64_t latent;  // of these: its first elements
  int64_t rows;    // of the tile, whole registers
};

// Steps of a row that are summed up in registers. Floats are in pieces, which are summed in turn: one sum
// over 576 of them would round twice as much.
template <typename T>
inline constexpr int64_t kScoredSteps = std::is_same_v<T, float> ? 96 : kMaxLatent + kMaxRotary;

// sums[j, i] = cached row j of the chunk times query i. Queries are [width / kPair, rows, kPair], sums
// [kChunk, rows].
template <typename T>
void score_latents(const LatentShape& shape, const LatentChunk<T>& chunk, const T* queries, float* sums) {
  constexpr int kPair = DotStep<T>::kPair;
  constexpr int64_t kLine = 64 / sizeof(T) / kPair;
  // Of the cached rows that are broadcast at a time, where they become others.
  constexpr int64_t kCopied = std::is_same_v<Shared<T>, T> ? 0 : kGroupRows<T>;
  alignas(64) Shared<T> copies[kCopied * (kMaxLatent + kMaxRotary) + 1];
  for (int64_t position = 0; position < chunk.count; position += kGroupRows<T>) {
    with_count<kGroupRows<T>>(min_of(kGroupRows<T>, chunk.count - position), [&](auto positions) {
      const Shared<T>* keys[positions.value];
      for (int j = 0; j < positions.value; ++j) {
        if constexpr (std::is_same_v<Shared<T>, T>) {
          keys[j] = chunk.rows[position + j];
        } else {
          keys[j] = copies + j * shape.width;
          copy_shared(copies + j * shape.width, chunk.rows[position + j], shape.width);
        }
      }
      constexpr int kVecs = kGroupVecs<T, positions.value>;
      for (int64_t row = 0; row < shape.rows; row += kVecs * kLanes) {
        with_count<kVecs>(min_of(kVecs, (shape.rows - row) / kLanes), [&](auto vecs) {
          const int64_t steps = shape.width / kPair;
          for (int64_t begin = 0; begin < steps; begin += kScoredSteps<T>) {
            Vec products[positions.value][vecs.value] = {};
            as_pairs<T>(products, [&]() __attribute__((always_inline)) {
              add_products<T, positions.value, vecs.value>(
                  products, begin, min_of(begin + kScoredSteps<T>, steps),
                  [&](int j, int64_t step) __attribute__((always_inline)) {
                    return DotStep<T>::broadcast(keys[j] + step * kPair);
                  },
                  [&](int64_t step, int v) __attribute__((always_inline)) {
                    return DotStep<T>::load(queries + (step * shape.rows + row + v * kLanes) * kPair);
                  },
                  [&](int64_t step) __attribute__((always_inline)) {
                    if (row == 0 && step % kLine == 0) chunk.fetch(position, positions.value, step * kPair);
                  });
            });
#pragma GCC unroll 16
            for (int j = 0; j < positions.value; ++j) {
#pragma GCC unroll 8
              for (int v = 0; v < vecs.value; ++v) {
                float* const sum = sums + (position + j) * shape.rows + row + v * kLanes;
                store(sum, begin == 0 ? products[j][v] : load(sum) + products[j][v]);
              }
            }
          }
        });
      }
    });
  }
}

// Two positions' latents, side by side in pairs; nullptr stands for zeros.
SPLITSERVE_INLINE void join_latents(BFloat16* to, const BFloat16* first, const BFloat16* second,
                                    int64_t latent) {
#if defined(__AVX512BW__)
  alignas(64) static constexpr uint16_t kOrder[] = {
      0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
      11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  const __m512i low = _mm512_load_si512(kOrder), high = _mm512_load_si512(kOrder + 32), none{};
  for (int64_t d = 0; d < latent; d += 32) {
    const __m512i a = first == nullptr ? none : _mm512_loadu_si512(first + d),
                  b = second == nullptr ? none : _mm512_loadu_si512(second + d);
    _mm512_storeu_si512(to + 2 * d, _mm512_permutex2var_epi16(a, low, b));
    _mm512_storeu_si512(to + 2 * d + 32, _mm512_permutex2var_epi16(a, high, b));
  }
#else
  for (int64_t d = 0; d < latent; d += kLanes) {
    const UintVec a = first == nullptr ? UintVec{} : as_uint(load(first + d)) >> 16,
                  b = second == nullptr ? UintVec{} : as_uint(load(second + d));
    const UintVec both = a | b;
    std::memcpy(to + 2 * d, &both, sizeof both);
  }
#endif
}

// Adds the weighted latents of a chunk to the totals of rows [begin, end), [rows, latent]; `values` points to
// pairs of positions.
template <typename T>
void add_latents(const LatentShape& shape, const Chunk<T>& values, const Shared<T>* weights,
                 const Range* seen, Range rows, float* totals) {
  const auto add = [&](int64_t row, auto count) {
    const Weights<T, count.value> group{weights + row * kChunk, seen + row};
    constexpr int kVecs = kGroupVecs<T, count.value>;
    for (int64_t d = 0; d < shape.latent; d += kVecs * kLanes) {
      with_count<kVecs>(min_of(kVecs, (shape.latent - d) / kLanes), [&](auto vecs) {
        add_values<T, count.value, vecs.value, false>(values, {0, d, vecs.value * kLanes}, group,
                                                      totals + row * shape.latent, shape.latent, nullptr);
      });
    }
  };
  for (int64_t row = rows.begin; row < rows.end; row += kGroupRows<T>)
    with_count<kGroupRows<T>>(min_of(kGroupRows<T>, rows.end - row), [&](auto count) { add(row, count); });
}

#if defined(__AMX_BF16__)

// The same by tiles, for rows in sixteens, cached rows at one distance from each other, and latents of whole
// chunks in pairs, [kChunk / 2, latent, 2].
class LatentTiles {
 public:
  LatentTiles() {
    TileShapes shapes;
    shapes.set<0, 1, 2, 3, kLeft, kRight>(kTileSize, kTileRowBytes);
    shapes.use();
  }

  // For sixteen positions.
  void score(const LatentShape& shape, const LatentChunk<BFloat16>& chunk, int64_t position,
             const BFloat16* cached, const BFloat16* queries, float* sums) const {
    for (int64_t row = 0; row < shape.rows; row += 4 * kTileSize) {
      const BFloat16* right = queries + row * 2;
      float* to = sums + position * shape.rows + row;
      const bool is_first = row == 0;
      with_count<4>(min_of(4, (shape.rows - row) / kTileSize), [&](auto tiles) {
        zero<tiles.value>();
        for (int64_t step = 0; step < shape.width / kTileDepth; ++step) {
          tile_load<kLeft>(cached + step * kTileDepth, shape.width * 2);
          if (is_first) chunk.fetch(position, kTileSize, step * kTileDepth);
          multiply<tiles.value>(right + step * kTileSize * shape.rows * 2, shape.rows * 4);
        }
        keep<tiles.value>(to, shape.rows * 4);
      });
    }
  }

  // Of sixteen rows.
  void add(const LatentShape& shape, const BFloat16* values, const BFloat16* weights, float* totals) const {
    for (int64_t d = 0; d < shape.latent; d += 4 * kTileSize) {
      with_count<4>(min_of(4, (shape.latent - d) / kTileSize), [&](auto tiles) {
        take<tiles.value>(totals + d, shape.latent * 4);
        for (int64_t step = 0; step < kChunk / kTileDepth; ++step) {
          tile_load<kLeft>(weights + step * kTileDepth, kChunk * 2);
          multiply<tiles.value>(values + (step * kTileSize * shape.latent + d) * 2, shape.latent * 4);
        }
        keep<tiles.value>(totals + d, shape.latent * 4);
      });
    }
  }

 private:
  static constexpr int kLeft = 4, kRight = 5;

  template <int kTiles>
  SPLITSERVE_INLINE static void zero() {
    tile_zero<0>();
    if constexpr (kTiles > 1) tile_zero<1>();
    if constexpr (kTiles > 2) tile_zero<2>();
    if constexpr (kTiles > 3) tile_zero<3>();
  }

  // Sums 0 to kTiles - 1 += what is on the left times as many tiles side by side.
  template <int kTiles>
  SPLITSERVE_INLINE static void multiply(const BFloat16* right, int64_t stride) {
    tile_load<kRight>(right, stride);
    tile_multiply<0, kLeft, kRight>();
    if constexpr (kTiles > 1) {
      tile_load<kRight>(right + 2 * kTileSize, stride);
      tile_multiply<1, kLeft, kRight>();
    }
    if constexpr (kTiles > 2) {
      tile_load<kRight>(right + 4 * kTileSize, stride);
      tile_multiply<2, kLeft, kRight>();
    }
    if constexpr (kTiles > 3) {
      tile_load<kRight>(right + 6 * kTileSize, stride);
      tile_multiply<3, kLeft, kRight>();
    }
  }

  template <int kTiles>
  SPLITSERVE_INLINE static void take(const float* from, int64_t stride) {
    tile_load<0>(from, stride);
    if constexpr (kTiles > 1) tile_load<1>(from + kTileSize, stride);
    if constexpr (kTiles > 2) tile_load<2>(from + 2 * kTileSize, stride);
    if constexpr (kTiles > 3) tile_load<3>(from + 3 * kTileSize, stride);
  }

  template <int kTiles>
  SPLITSERVE_INLINE static void keep(float* to, int64_t stride) {
    tile_store<0>(to, stride);
    if constexpr (kTiles > 1) tile_store<1>(to + kTileSize, stride);
    if constexpr (kTiles > 2) tile_store<2>(to + 2 * kTileSize, stride);
    if constexpr (kTiles > 3) tile_store<3>(to + 3 * kTileSize, stride);
  }

  const TileUse use;
};

#endif

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
