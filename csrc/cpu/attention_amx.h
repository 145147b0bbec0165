// The two products of attention by the tiles of AMX: up to 32 rows with the keys, and their weights with the
// values, of one chunk.
//
// A score is summed up along the dimensions, 32 at a time; the weighted values along the positions, 16 at a
// time, which is what a block holds in one piece. Each row takes the same steps whichever rows are beside it:
// those of all 64 positions of a chunk, with weights of zero and values of zero where it sees none.
#pragma once

#include <type_traits>

#include "cpu/amx.h"
#include "cpu/attention_products.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// In place of tiles where there are none.
struct NoTiles {
  explicit NoTiles(const AttentionParams&) {}
  static int64_t query_stride(int64_t head_dim) { return head_dim; }
};

#if defined(__AMX_BF16__)

// Asks for what is wanted next, if anything is, little by little.
class Requests {
 public:
  Requests(const Stream<BFloat16>* wanted, int64_t steps)
      : wanted(wanted), steps(wanted == nullptr ? 0 : steps) {}

  // `count` steps more, as far as there are.
  SPLITSERVE_INLINE void next(int64_t count) {
    for (; count > 0 && step < steps; --count) wanted->fetch(step++);
  }

 private:
  const Stream<BFloat16>* const wanted;
  const int64_t steps;
  int64_t step = 0;
};

// Belongs to one thread. Queries are [rows, query_stride], with zeros from the head size on; dots and
// weights [rows, kChunk].
class TileProducts {
 public:
  static constexpr int64_t kMaxRows = 2 * kTileSize;

  explicit TileProducts(const AttentionParams& params) : p(params) {}

  static int64_t query_stride(int64_t head_dim) { return round_up(head_dim, kTileDepth); }

  // dots[i, j] = query i times key j, for the registers of positions in `registers`.
  void score(const Stream<BFloat16>& keys, Range registers, const BFloat16* queries, int64_t rows,
             float* dots, const Stream<BFloat16>* wanted) {
    shape(rows);
    Requests requests(wanted, p.head_dim / 2);
    for (int64_t first = registers.begin; first < registers.end; first += 2) {
      const int64_t cols = min_of(2, registers.end - first);
      copy_last_dims(keys, first, cols);
      const Scores work{keys, first, queries, dots, &requests};
      if (rows > kTileSize) {
        cols == 2 ? score_tiles<2, 2>(work) : score_tiles<2, 1>(work);
      } else {
        cols == 2 ? score_tiles<1, 2>(work) : score_tiles<1, 1>(work);
      }
    }
    requests.next(p.head_dim / 2);
  }

  // totals[i] += weights of row i times the values of a KV head that begins `offset` elements behind the one
  // that the chunk was looked for. Row i sees seen[i]; elsewhere its weights are zero.
  void add_values(const Chunk<BFloat16>& chunk, int64_t offset, const Range* seen, int64_t rows,
                  const BFloat16* weights, float* totals, const Stream<BFloat16>* wanted) {
    const Range any{seen[0].begin, seen[rows - 1].end}, shared{seen[rows - 1].begin, seen[0].end};
    // A weight of zero does not hide a NaN.
    if (rows > 1 && !are_finite(chunk, offset, any, shared)) {
      for (int64_t i = 0; i < rows; ++i)
        add_values(chunk, offset, seen + i, 1, weights + i * kChunk, totals + i * width, wanted);
      return;
    }
    shape(rows);
    find_values(chunk, offset, any);
    Requests requests(wanted, p.head_dim / 2);
    for (int64_t first = 0; first < width; first += 2 * kTileSize) {
      const Sums work{first, weights, totals, &requests};
      const bool is_pair = first + kTileSize < width;
      if (rows > kTileSize) {
        is_pair ? add_tiles<2, 2>(work) : add_tiles<2, 1>(work);
      } else {
        is_pair ? add_tiles<1, 2>(work) : add_tiles<1, 1>(work);
      }
    }
    requests.next(p.head_dim / 2);
  }

 private:
  // Of sums 0 to 3: [rows][columns].
  static constexpr int kQueries = 4, kKeys = 5, kWeights = 6, kValues = 7;
  static constexpr int64_t kPairs = kTileSize / 2;  // of the positions of a register

  struct Scores {
    const Stream<BFloat16>& keys;
    int64_t first;  // register of positions
    const BFloat16* queries;
    float* dots;
    Requests* requests;
  };

  struct Sums {
    int64_t first;  // dimension
    const BFloat16* weights;
    float* totals;
    Requests* requests;
  };

  // More than 16 rows are two tiles of one height, which share a row if their number is odd: both compute
  // it, from the same and with the same result.
  void shape(int64_t rows) {
    if (rows == shaped_rows) return;
    shaped_rows = rows;
    const int64_t height = rows > kTileSize ? (rows + 1) / 2 : rows;
    second_row = rows - height;
    TileShapes shapes;
    shapes.set<0, 1, 2, 3, kQueries>(height, kTileRowBytes);
    shapes.set<kKeys>(kTileSize, kTileRowBytes);
    shapes.set<kWeights>(height, kTileSize * 2);
    shapes.set<kValues>(kPairs, kTileRowBytes);
    shapes.use();
  }

  // Of the tile's rows [0, height) and [second_row, rows) with two registers of positions or one.
  template <int kRowTiles, int kCols>
  SPLITSERVE_INLINE void score_tiles(const Scores& work) const {
    const int64_t stride = query_stride(p.head_dim), steps = stride / kTileDepth;
    const BFloat16 *top = work.queries, *bottom = work.queries + second_row * stride;
    zero_sums<kRowTiles, kCols>();
    for (int64_t step = 0; step < steps; ++step, top += kTileDepth, bottom += kTileDepth) {
      load_keys(work, 0, step);
      tile_load<kQueries>(top, stride * 2);
      tile_multiply<0, kQueries, kKeys>();
      work.requests->next(2);
      if constexpr (kRowTiles > 1) {
        tile_load<kQueries>(bottom, stride * 2);
        tile_multiply<2, kQueries, kKeys>();
      }
      work.requests->next(2);
      if constexpr (kCols > 1) {
        load_keys(work, 1, step);
        if constexpr (kRowTiles > 1) {
          tile_multiply<3, kQueries, kKeys>();
          tile_load<kQueries>(top, stride * 2);
        }
        work.requests->next(2);
        tile_multiply<1, kQueries, kKeys>();
      }
      work.requests->next(2);
    }
    float* const dots = work.dots + work.first * kLanes;
    store_sums<kRowTiles, kCols>(dots, kChunk);
  }

  SPLITSERVE_INLINE void load_keys(const Scores& work, int64_t col, int64_t step) const {
    const int64_t stride = work.keys.stride;
    if ((step + 1) * kTileDepth > p.head_dim) return tile_load<kKeys>(last_keys[col], kTileRowBytes);
    tile_load<kKeys>(work.keys.pieces[work.first + col] + step * kTileSize * stride, stride * 2);
  }

  // Dimensions that are no whole step, with zeros behind them.
  void copy_last_dims(const Stream<BFloat16>& keys, int64_t first, int64_t cols) {
    const int64_t whole = p.head_dim / kTileDepth * kTileSize, pairs = p.head_dim / 2;
    if (whole == pairs) return;
    for (int64_t col = 0; col < cols; ++col) {
      std::memset(last_keys[col], 0, sizeof last_keys[col]);
      for (int64_t pair = whole; pair < pairs; ++pair)
        std::memcpy(last_keys[col] + (pair - whole) * kTileDepth,
                    keys.pieces[first + col] + pair * keys.stride, kTileRowBytes);
    }
  }

  // One or two registers of dimensions.
  template <int kRowTiles, int kCols>
  SPLITSERVE_INLINE void add_tiles(const Sums& work) const {
    float* const totals = work.totals + work.first;
    load_sums<kRowTiles, kCols>(totals, width);
    const BFloat16 *top = work.weights, *bottom = work.weights + second_row * kChunk;
    for (int64_t v = 0; v < kChunk / kTileSize; ++v, top += kTileSize, bottom += kTileSize) {
      const Values& from = values[v];
      const BFloat16* dims = from.data + work.first * 2;
      tile_load<kValues>(dims, from.stride * 2);
      tile_load<kWeights>(top, kChunk * 2);
      tile_multiply<0, kWeights, kValues>();
      work.requests->next(2);
      if constexpr (kRowTiles > 1) {
        tile_load<kWeights>(bottom, kChunk * 2);
        tile_multiply<2, kWeights, kValues>();
      }
      if constexpr (kCols > 1) {
        tile_load<kValues>(dims + kTileSize * 2, from.stride * 2);
        if constexpr (kRowTiles > 1) {
          tile_multiply<3, kWeights, kValues>();
          tile_load<kWeights>(top, kChunk * 2);
        }
        tile_multiply<1, kWeights, kValues>();
      }
      work.requests->next(2);
    }
    store_sums<kRowTiles, kCols>(totals, width);
  }

  template <int kRowTiles, int kCols>
  SPLITSERVE_INLINE static void zero_sums() {
    tile_zero<0>();
    if constexpr (kCols > 1) tile_zero<1>();
    if constexpr (kRowTiles > 1) tile_zero<2>();
    if constexpr (kRowTiles > 1 && kCols > 1) tile_zero<3>();
  }

  template <int kRowTiles, int kCols>
  SPLITSERVE_INLINE void load_sums(const float* from, int64_t stride) const {
    const float* bottom = from + second_row * stride;
    tile_load<0>(from, stride * 4);
    if constexpr (kCols > 1) tile_load<1>(from + kTileSize, stride * 4);
    if constexpr (kRowTiles > 1) tile_load<2>(bottom, stride * 4);
    if constexpr (kRowTiles > 1 && kCols > 1) tile_load<3>(bottom + kTileSize, stride * 4);
  }

  template <int kRowTiles, int kCols>
  SPLITSERVE_INLINE void store_sums(float* to, int64_t stride) const {
    float* bottom = to + second_row * stride;
    tile_store<0>(to, stride * 4);
    if constexpr (kCols > 1) tile_store<1>(to + kTileSize, stride * 4);
    if constexpr (kRowTiles > 1) tile_store<2>(bottom, stride * 4);
    if constexpr (kRowTiles > 1 && kCols > 1) tile_store<3>(bottom + kTileSize, stride * 4);
  }

  // The values of 16 positions, [8, stride / 2, 2].
  struct Values {
    const BFloat16* data;
    int64_t stride;
  };

  // Where a block holds what some row sees of them, that is where they are; else they are copied, with zeros
  // in place of what no row sees, which may be anything.
  void find_values(const Chunk<BFloat16>& chunk, int64_t offset, Range any) {
    // Decoded copies are whole, too.
    const bool is_whole = p.format != CacheFormat::kPlain || ChunkFinder<BFloat16>::reads_in_place(p);
    const bool is_direct = is_whole && width == p.head_dim;
    for (int64_t v = 0; v < kChunk / kTileSize; ++v) {
      const Range piece{v * kTileSize, (v + 1) * kTileSize};
      const Range wanted{max_of(any.begin, piece.begin), min_of(any.end, piece.end)};
      if (wanted.empty()) {
        values[v] = {kZeros, 0};
      } else if (is_direct && wanted.begin == piece.begin && wanted.end == piece.end) {
        values[v] = {chunk.values[v * kPairs] + offset, p.head_dim * 2};
      } else {
        for (int64_t pair = 0; pair < kPairs; ++pair)
          copy_pair(chunk, offset, v * kPairs + pair, wanted, copies[v] + pair * width * 2);
        values[v] = {copies[v], width * 2};
      }
    }
  }

  // A pair of positions, with zeros in place of what is not seen and of dimensions behind the last one.
  void copy_pair(const Chunk<BFloat16>& chunk, int64_t offset, int64_t pair, Range seen, BFloat16* to) const {
    const bool sees_first = seen.holds(pair * 2), sees_last = seen.holds(pair * 2 + 1);
    const uint32_t mask = (sees_first ? 0x0000ffffu : 0) | (sees_last ? 0xffff0000u : 0);
    for (int64_t d = 0; d < width; d += kLanes) {
      UintVec units{};
      if (mask != 0) units = units_of(chunk.values[pair] + offset, d) & mask;
      std::memcpy(to + d * 2, &units, sizeof units);
    }
  }

  // A register of a pair of positions, with zeros behind the last dimension.
  SPLITSERVE_INLINE UintVec units_of(const BFloat16* positions, int64_t first_dim) const {
    const int64_t left = p.head_dim - first_dim;
    const __mmask16 there = static_cast<__mmask16>(left >= kLanes ? 0xffff : (1 << left) - 1);
    return reinterpret_cast<UintVec>(_mm512_maskz_loadu_epi32(there, positions + first_dim * 2));
  }

  // Whether those positions hold no infinity and no NaN that some of the rows see and others do not.
  bool are_finite(const Chunk<BFloat16>& chunk, int64_t offset, Range any, Range shared) const {
    constexpr uint32_t kExponents = 0x7f807f80u;
    UintVec greatest{};
    for (int64_t pair = any.begin / 2; pair * 2 < any.end; ++pair) {
      if (shared.begin <= pair * 2 && pair * 2 + 2 <= shared.end) continue;
      const bool sees_first = any.holds(pair * 2), sees_last = any.holds(pair * 2 + 1);
      const uint32_t mask = (sees_first ? 0x0000ffffu : 0) | (sees_last ? 0xffff0000u : 0);
      for (int64_t d = 0; d < p.head_dim; d += kLanes) {
        const UintVec exponents = units_of(chunk.values[pair] + offset, d) & (mask & kExponents);
        greatest = reinterpret_cast<UintVec>(
            _mm512_max_epu16(reinterpret_cast<__m512i>(greatest), reinterpret_cast<__m512i>(exponents)));
      }
    }
    return _mm512_cmpeq_epu16_mask(reinterpret_cast<__m512i>(greatest), _mm512_set1_epi16(0x7f80)) == 0;
  }

  alignas(64) static constexpr BFloat16 kZeros[2 * kMaxHeadDim]{};

  const AttentionParams& p;
  const int64_t width = round_up(p.head_dim, kTileSize);  // of totals
  int64_t shaped_rows = 0, second_row = 0;
  Values values[kChunk / kTileSize];  // of the chunk
  alignas(64) BFloat16 last_keys[2][kTileSize * kTileDepth];
  alignas(64) BFloat16 copies[kChunk / kTileSize][kTileSize * kMaxHeadDim];
  const TileUse use;
};

template <typename T>
using TilesFor = std::conditional_t<std::is_same_v<T, BFloat16>, TileProducts, NoTiles>;
#else
template <typename T>
using TilesFor = NoTiles;
#endif

template <typename T>
inline constexpr bool kHasTiles = !std::is_same_v<TilesFor<T>, NoTiles>;

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
