// Paged attention with an online softmax, one kernel for prefill, chunk and decode rows.
//
// A row (one query head of one token) walks the positions it may see in chunks of kChunk and segments of
// kSegment, both aligned to absolute position 0. A segment starts from nothing; segments are merged in order.
// Positions the row must not see take part in no operation of that row. So its bits do not depend on
// which rows share its tile, on how the prompt was cut into steps, or on whether segments ran on one thread
// or on many.
//
// Weights are rounded to the type of the values before they multiply them, as in FlashAttention (Dao et al.,
// 2022); dot products and all sums are float32.
#include "cpu/attention.h"

#include <cstdlib>

#include "cpu/attention_chunk.h"
#include "cpu/attention_state.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

inline constexpr int64_t kSegment = 1024;
// Rows that share what is loaded of keys and values.
inline constexpr int64_t kTileRows = 48;
// Of these, rows whose sums are in registers at the same time, and registers of each row.
#if defined(__AVX512BF16__)
inline constexpr int kGroupRows = 6, kGroupVecs = 4;
#elif defined(__AVX512F__)
inline constexpr int kGroupRows = 4, kGroupVecs = 4;
#else
inline constexpr int kGroupRows = 4, kGroupVecs = 2;
#endif

int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Some of the rows that read one KV head for one request: those of its tokens, heads of a token side by side.
struct Tile {
  int64_t request, kv_head;
  int64_t first_row, rows;  // among the tokens * heads / kv_heads rows of the request
};

// sums[i][v] += left(i, step) * right(step, v) for the steps from begin to end, in order.
template <typename T, int kRows, int kVecs, typename Left, typename Right>
SPLITSERVE_INLINE void add_products(Vec (*sums)[kVecs], int64_t begin, int64_t end, const Left& left,
                                    const Right& right) {
  using Step = DotStep<T>;
  for (int64_t step = begin; step < end; ++step) {
    typename Step::Operand operands[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) operands[v] = right(step, v);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const typename Step::Operand operand = left(i, step);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[i][v] = Step::accumulate(sums[i][v], operand, operands[v]);
    }
  }
}

// Computes one tile.
template <typename T>
class TileAttention {
 public:
  TileAttention(const AttentionParams& params, const Tile& tile)
      : p(params),
        tile(tile),
        width(round_up(params.head_dim, kLanes)),
        scoring(params),
        finder(params, tile.request, tile.kv_head) {
    const int64_t group = p.heads / p.kv_heads, first_token = p.cu_seqlens_q[tile.request];
    const int64_t tokens = p.cu_seqlens_q[tile.request + 1] - first_token;
    for (int64_t i = 0; i < tile.rows; ++i) {
      const int64_t token = (tile.first_row + i) / group;
      const int64_t head = tile.kv_head * group + (tile.first_row + i) % group;
      positions[i] = p.seq_lens[tile.request] - tokens + token;
      queries[i] =
          static_cast<const T*>(p.q) + (first_token + token) * p.q_token_stride + head * p.q_head_stride;
      outputs[i] =
          static_cast<T*>(p.out) + (first_token + token) * p.out_token_stride + head * p.out_head_stride;
    }
  }

  int64_t first_segment() const { return window_start(positions[0]) / kSegment; }
  int64_t end_segment() const { return positions[tile.rows - 1] / kSegment + 1; }

  // The chunk that the tile begins with, as far as its memory may be asked for before its turn.
  void find_first(Chunk<T>* found) {
    const Range seen = seen_of(first_segment());
    find(seen.begin / kChunk * kChunk, seen, found);
  }

  // Adds all the tile's rows see of segment `index` to a state that has seen nothing. `after` is the chunk
  // that this thread computes after the segment.
  void segment(int64_t index, const State& state, const Chunk<T>* after = nullptr) {
    const Range seen = seen_of(index);
    for (int64_t start = seen.begin / kChunk * kChunk; start < seen.end; start += kChunk) {
      if (start <= seen.begin) find(start, seen, &chunk);
      next = after != nullptr ? *after : chunk;
      if (start + kChunk < seen.end) find(start + kChunk, seen, &next);
      groups<kGroupRows>(0, start, state);
      chunk = next;
    }
  }

  void write(const State& total) const {
    for (int64_t row = 0; row < tile.rows; ++row) {
      const float inverse = 1.0f / sum_lanes(load(total.sums + row * kLanes));
      for (int64_t d = 0; d < p.head_dim; d += kLanes)
        store_up_to(outputs[row] + d, load(total.values + row * width + d) * inverse, p.head_dim - d);
    }
  }

 private:
  static constexpr int kPair = DotStep<T>::kPair;

  // A row at `position` sees [window_start(position), position].
  int64_t window_start(int64_t position) const {
    return p.sliding_window > 0 ? max_of(0, position + 1 - p.sliding_window) : 0;
  }

  // Positions of a segment that some row sees.
  Range seen_of(int64_t index) const {
    return {max_of(index * kSegment, window_start(positions[0])),
            min_of((index + 1) * kSegment, positions[tile.rows - 1] + 1)};
  }

  void find(int64_t start, Range seen, Chunk<T>* found) {
    finder.find(start, {max_of(0, seen.begin - start), min_of(kChunk, seen.end - start)}, found);
  }

  Range seen_by(int64_t row, int64_t start) const {
    return {max_of(0, window_start(positions[row]) - start), min_of(kChunk, positions[row] + 1 - start)};
  }

  // The rows from `row` on, kRows at a time, then what is left of them.
  template <int kRows>
  void groups(int64_t row, int64_t start, const State& state) const {
    for (; row + kRows <= tile.rows; row += kRows) {
      if (positions[row + kRows - 1] >= start) add_chunk<kRows>(row, start, state);
    }
    if constexpr (kRows > 1) {
      if (row < tile.rows) groups<kRows - 1>(row, start, state);
    }
  }

  template <int kRows>
  void add_chunk(int64_t row, int64_t start, const State& state) const {
    alignas(64) float dots[kRows * kChunk];
    alignas(64) T weights[kRows * kChunk];
    Range seen[kRows];
    score<kRows>(row, dots);
    for (int i = 0; i < kRows; ++i) seen[i] = seen_by(row + i, start);
    weigh<kRows>(scoring, seen, row, state, dots, weights);
    int64_t d = 0;
    for (; d + kGroupVecs * kLanes <= p.head_dim; d += kGroupVecs * kLanes)
      add_values<kRows, kGroupVecs>(row, d, seen, weights, state);
    for (; d < p.head_dim; d += kLanes) add_values<kRows, 1>(row, d, seen, weights, state);
  }

  // dots[i, j] = query of row + i times key j of the chunk
  template <int kRows>
  SPLITSERVE_INLINE void score(int64_t row, float* dots) const {
    for (int64_t first = 0; first < kChunk / kLanes; first += kGroupVecs) {
      Vec sums[kRows][kGroupVecs] = {};
      add_products<T, kRows, kGroupVecs>(
          sums, 0, p.head_dim / kPair,
          [&](int i, int64_t step) __attribute__((always_inline)) {
            return DotStep<T>::broadcast(queries[row + i] + step * kPair);
          },
          [&](int64_t step, int v) __attribute__((always_inline)) {
            __builtin_prefetch(next.keys[first + v] + step * next.key_stride);
            return DotStep<T>::load(chunk.keys[first + v] + step * chunk.key_stride);
          });
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int v = 0; v < kGroupVecs; ++v) store(dots + i * kChunk + (first + v) * kLanes, sums[i][v]);
      }
    }
  }

  // The pairs of positions that every row sees whole; empty, at the end of the chunk, if there is none.
  template <int kRows>
  static Range shared_pairs(const Range* seen) {
    Range shared{0, kChunk / kPair};
    for (int i = 0; i < kRows; ++i) {
      shared.begin = max_of(shared.begin, (seen[i].begin + kPair - 1) / kPair);
      shared.end = min_of(shared.end, max_of(0, seen[i].end) / kPair);
    }
    return shared.empty() ? Range{kChunk / kPair, kChunk / kPair} : shared;
  }

  // values[row + i] += weighted sum of the chunk's values, for kVecs registers of dimensions from d on. The
  // chunk is summed from zero: that loses less than adding each position to a long running sum.
  template <int kRows, int kVecs>
  SPLITSERVE_INLINE void add_values(int64_t row, int64_t d, const Range* seen, const T* weights,
                                    const State& state) const {
    constexpr int64_t kPairs = kChunk / kPair;
    const Range shared = shared_pairs<kRows>(seen);
    Vec sums[kRows][kVecs] = {};
    if (shared.begin > 0) add_edges<kRows, kVecs>(sums, weights, d, seen, {0, shared.begin});
    add_products<T, kRows, kVecs>(
        sums, shared.begin, shared.end,
        [&](int i, int64_t pair) __attribute__((always_inline)) {
          return DotStep<T>::broadcast(weights + i * kChunk + pair * kPair);
        },
        [&](int64_t pair, int v) __attribute__((always_inline)) {
          __builtin_prefetch(next.values[pair] + (d + v * kLanes) * kPair);
          return load_values<kVecs>(pair, d + v * kLanes);
        });
    if (shared.end < kPairs) add_edges<kRows, kVecs>(sums, weights, d, seen, {shared.end, kPairs});
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      if (seen[i].empty()) continue;
      float* values = state.values + (row + i) * width + d;
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) store(values + v * kLanes, load(values + v * kLanes) + sums[i][v]);
    }
  }

  // Those of `pairs` that a row sees, or half of which it sees. The sums go through memory, so that the
  // common case keeps them in registers.
  template <int kRows, int kVecs>
  SPLITSERVE_INLINE void add_edges(Vec (&sums)[kRows][kVecs], const T* weights, int64_t d, const Range* seen,
                                   Range pairs) const {
    alignas(64) float buffer[kRows * kVecs * kLanes];
#pragma GCC unroll 64
    for (int i = 0; i < kRows * kVecs; ++i) store(buffer + i * kLanes, sums[i / kVecs][i % kVecs]);
    for (int i = 0; i < kRows; ++i) {
      if (!seen[i].empty())
        add_row_edge<kVecs>(buffer + i * kVecs * kLanes, weights + i * kChunk, d, seen[i], pairs);
    }
#pragma GCC unroll 64
    for (int i = 0; i < kRows * kVecs; ++i) sums[i / kVecs][i % kVecs] = load(buffer + i * kLanes);
  }

  template <int kVecs>
  [[gnu::noinline]] void add_row_edge(float* buffer, const T* weights, int64_t d, Range seen,
                                      Range pairs) const {
    pairs.begin = max_of(pairs.begin, seen.begin / kPair);
    pairs.end = min_of(pairs.end, (seen.end + kPair - 1) / kPair);
    Vec sums[1][kVecs];
    for (int v = 0; v < kVecs; ++v) sums[0][v] = load(buffer + v * kLanes);
    add_products<T, 1, kVecs>(
        sums, pairs.begin, pairs.end,
        [&](int, int64_t pair)
            __attribute__((always_inline)) { return DotStep<T>::broadcast(weights + pair * kPair); },
        [&](int64_t pair, int v)
            __attribute__((always_inline)) { return load_seen_values<kVecs>(pair, d + v * kLanes, seen); });
    for (int v = 0; v < kVecs; ++v) store(buffer + v * kLanes, sums[0][v]);
  }

  template <int kVecs>
  SPLITSERVE_INLINE typename DotStep<T>::Operand load_values(int64_t pair, int64_t d) const {
    const T* values = chunk.values[pair] + d * kPair;
    if (kVecs > 1 || d + kLanes <= p.head_dim) return DotStep<T>::load(values);
    return load_end(values, (p.head_dim - d) * kPair);
  }

  // A pair of positions with zeros for one that is not seen: a weight of 0 does not hide a NaN.
  template <int kVecs>
  SPLITSERVE_INLINE typename DotStep<T>::Operand load_seen_values(int64_t pair, int64_t d, Range seen) const {
    if (pair * kPair >= seen.begin && (pair + 1) * kPair <= seen.end) return load_values<kVecs>(pair, d);
    const int64_t hidden = pair * kPair < seen.begin ? 0 : 1;
    T values[kLanes * kPair] = {};
    const int64_t count = min_of(kLanes, p.head_dim - d);
    std::memcpy(values, chunk.values[pair] + d * kPair, static_cast<size_t>(count * kPair) * sizeof(T));
    for (int64_t i = 0; i < kLanes; ++i) values[i * kPair + hidden] = T{};
    return DotStep<T>::load(values);
  }

  const AttentionParams& p;
  const Tile tile;
  const int64_t width;
  const Scoring scoring;
  ChunkFinder<T> finder;
  Chunk<T> chunk, next;  // the memory of `next` is asked for while `chunk` is computed
  int64_t positions[kTileRows];
  const T* queries[kTileRows];
  T* outputs[kTileRows];
};

// Splits a call into tiles, and these into segments where tiles alone would leave threads without work.
template <typename T>
class Attention {
 public:
  explicit Attention(const AttentionParams& params)
      : p(params), group(p.heads / p.kv_heads), width(round_up(p.head_dim, kLanes)) {}

  void run() const {
    int64_t num_tiles = 0, work = 0, max_segments = 1;
    for (int64_t r = 0; r < p.requests; ++r) {
      num_tiles += tiles_of(r) * p.kv_heads;
      work += rows_of(r) * p.kv_heads * p.seq_lens[r] * p.head_dim;
      if (rows_of(r) > 0) max_segments = max_of(max_segments, (p.seq_lens[r] + kSegment - 1) / kSegment);
    }
    auto* tiles = static_cast<Tile*>(std::malloc(static_cast<size_t>(num_tiles + 1) * sizeof(Tile)));
    list_tiles(tiles);
    if (max_segments > 1 && num_tiles < 2 * num_threads()) {
      run_split(tiles, num_tiles, max_segments, work);
    } else {
      run_whole(tiles, num_tiles, work);
    }
    std::free(tiles);
  }

 private:
  int64_t rows_of(int64_t r) const { return (p.cu_seqlens_q[r + 1] - p.cu_seqlens_q[r]) * group; }
  int64_t tiles_of(int64_t r) const { return (rows_of(r) + kTileRows - 1) / kTileRows; }

  // The last tile of a request first: it sees the most.
  void list_tiles(Tile* tiles) const {
    for (int64_t r = 0; r < p.requests; ++r) {
      for (int64_t i = tiles_of(r) - 1; i >= 0; --i) {
        const int64_t first = i * kTileRows, rows = min_of(kTileRows, rows_of(r) - first);
        for (int64_t head = 0; head < p.kv_heads; ++head) *tiles++ = {r, head, first, rows};
      }
    }
  }

  void run_whole(const Tile* tiles, int64_t num_tiles, int64_t work) const {
    parallel_for(num_tiles, work, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) {
        // A tile of few chunks, as in decoding, would wait long for its first one.
        Chunk<T> after;
        const bool is_known = index + 1 < end && ChunkFinder<T>::reads_in_place(p);
        if (is_known) TileAttention<T>(p, tiles[index + 1]).find_first(&after);
        run_tile(tiles[index], is_known ? &after : nullptr);
      }
    });
  }

  void run_tile(const Tile& described, const Chunk<T>* after) const {
    alignas(64) float buffers[2][State::floats(kTileRows, kMaxHeadDim)];
    const int64_t rows = described.rows;
    const State total(buffers[0], rows, width), part(buffers[1], rows, width);
    TileAttention<T> tile(p, described);
    total.clear(rows);
    const int64_t last = tile.end_segment() - 1;
    tile.segment(tile.first_segment(), total, tile.first_segment() == last ? after : nullptr);
    for (int64_t s = tile.first_segment() + 1; s <= last; ++s) {
      part.clear(rows);
      tile.segment(s, part, s == last ? after : nullptr);
      for (int64_t row = 0; row < rows; ++row) total.merge(row, part);
    }
    tile.write(total);
  }

  // Few rows over a long context: one task per segment, merged afterwards in the same order.
  void run_split(const Tile* tiles, int64_t num_tiles, int64_t max_segments, int64_t work) const {
    const int64_t floats = State::floats(kTileRows, width);
    auto* parts = static_cast<float*>(std::aligned_alloc(
        64, static_cast<size_t>(round_up(num_tiles * max_segments * floats, 16)) * sizeof(float)));
    const auto state_of = [&](int64_t index, int64_t s) {
      return State(parts + (index * max_segments + s) * floats, tiles[index].rows, width);
    };
    parallel_tasks(num_tiles * max_segments, work, [&](int64_t task) {
      const int64_t index = task / max_segments, s = task % max_segments;
      TileAttention<T> tile(p, tiles[index]);
      if (s < tile.first_segment() || s >= tile.end_segment()) return;
      state_of(index, s).clear(tiles[index].rows);
      tile.segment(s, state_of(index, s));
    });
    for (int64_t index = 0; index < num_tiles; ++index) {
      const TileAttention<T> tile(p, tiles[index]);
      const State total = state_of(index, tile.first_segment());
      for (int64_t s = tile.first_segment() + 1; s < tile.end_segment(); ++s) {
        for (int64_t row = 0; row < tiles[index].rows; ++row) total.merge(row, state_of(index, s));
      }
      tile.write(total);
    }
    std::free(parts);
  }

  const AttentionParams& p;
  const int64_t group, width;
};

}  // namespace

void paged_attention(const AttentionParams& params) {
  if (params.dtype == DType::kBFloat16) {
    Attention<BFloat16>(params).run();
  } else {
    Attention<float>(params).run();
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
