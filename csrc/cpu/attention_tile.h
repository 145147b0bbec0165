// Computes one tile of attention: rows of a request that read the same KV head, chunk by chunk.
#pragma once

#include "cpu/attention_amx.h"
#include "cpu/attention_products.h"
#include "cpu/attention_state.h"
#include "cpu/coded_chunk.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

inline constexpr int64_t kSegment = 1024;
// Rows that share what is loaded of keys and values.
template <typename T>
inline constexpr int64_t kTileRows = kHasTiles<T> ? 32 : 48;

// For some KV heads of a request, some of the rows that read each: those of its tokens, heads of a token side
// by side.
struct Tile {
  int64_t request, kv_head, kv_heads;
  int64_t first_row, rows;  // among the tokens * heads / kv_heads rows of each KV head

  int64_t all_rows() const { return kv_heads * rows; }
};

template <typename T, typename Codes>
class TileAttention {
 public:
  TileAttention(const AttentionParams& params, const Tile& tile)
      : p(params),
        tile(tile),
        group(params.heads / params.kv_heads),
        width(round_up(params.head_dim, kLanes)),
        query_stride(TilesFor<T>::query_stride(params.head_dim)),
        scoring(params),
        tiles(params),
        finder(params, tile.request, tile.kv_head),
        reader(params) {
    const int64_t tokens = p.cu_seqlens_q[tile.request + 1] - p.cu_seqlens_q[tile.request];
    first_position = p.seq_lens[tile.request] - tokens;
    positions[0] = first_position + tile.first_row / group;
    positions[tile.rows - 1] = first_position + (tile.first_row + tile.rows - 1) / group;
  }

  int64_t first_segment() const { return window_start(positions[0]) / kSegment; }
  int64_t end_segment() const { return positions[tile.rows - 1] / kSegment + 1; }

  using Element = typename ChunkReader<T, Codes>::Element;

  // The chunk that the tile begins with, as far as its memory may be asked for before its turn.
  void find_first(Chunk<Element>* found) {
    const Range seen = seen_of(first_segment());
    find(seen.begin / kChunk * kChunk, seen, found);
  }

  // Asks for the memory of the rows.
  void fetch_rows() const {
    each_row([&](int64_t, int64_t token, int64_t head) {
      for (int64_t d = 0; d < p.head_dim; d += kLanes * kPair) {
        __builtin_prefetch(query_of(token, head) + d);
      }
    });
  }

  // Once, before the first segment. Queries lie together then: apart, at a distance of a power of two, they
  // would drive each other out of the cache.
  void prepare() {
    each_row([&](int64_t row, int64_t token, int64_t head) {
      if (row < tile.rows) positions[row] = first_position + token;
      Shared<T>* const query = queries + row * query_stride;
      copy_shared(query, query_of(token, head), p.head_dim);
      std::memset(query + p.head_dim, 0, static_cast<size_t>(query_stride - p.head_dim) * sizeof *query);
    });
  }

  // Adds all the tile's rows see of segment `index` to a state that has seen nothing. `after` is the chunk
  // that this thread computes after the segment.
  void segment(int64_t index, const State& state, const Chunk<Element>* after = nullptr) {
    const Range seen = seen_of(index);
    Chunk<Element>*chunk = &chunks[0], *next = &chunks[1];
    const int64_t first = seen.begin / kChunk * kChunk;
    find(first, seen, chunk);
    for (int64_t start = first; start < seen.end; start += kChunk) {
      const bool is_last = start + kChunk >= seen.end;
      if (!is_last) find(start + kChunk, seen, next);
      add_chunk(start, *chunk, !is_last ? *next : after != nullptr ? *after : *chunk, state);
      Chunk<Element>* const done = chunk;
      chunk = next, next = done;
    }
  }

  void write(const State& total) const {
    each_row([&](int64_t row, int64_t token, int64_t head) {
      T* out = out_of(token, head);
      const float inverse = total.inverse_sum(row, sink_of(head));
      for (int64_t d = 0; d < p.head_dim; d += kLanes) {
        Vec value = load(total.values + row * width + d) * inverse;
        // A zero may have got its sign from a value that the row did not see, by a weight of zero.
        if constexpr (kHasTiles<T>) value += 0.0f;
        store_up_to(out + d, value, p.head_dim - d);
      }
    });
  }

 private:
  static constexpr int kPair = DotStep<T>::kPair;

  // Calls fn(row, token, head): a token of the request, a query head.
  template <typename Fn>
  SPLITSERVE_INLINE void each_row(const Fn& fn) const {
    for (int64_t i = 0; i < tile.kv_heads; ++i) {
      int64_t token = tile.first_row / group, head = tile.first_row % group;
      for (int64_t row = 0; row < tile.rows; ++row) {
        fn(i * tile.rows + row, token, (tile.kv_head + i) * group + head);
        if (++head == group) head = 0, ++token;
      }
    }
  }

  const T* query_of(int64_t token, int64_t head) const {
    return static_cast<const T*>(p.q) + (p.cu_seqlens_q[tile.request] + token) * p.q_token_stride +
           head * p.q_head_stride;
  }

  T* out_of(int64_t token, int64_t head) const {
    return static_cast<T*>(p.out) + (p.cu_seqlens_q[tile.request] + token) * p.out_token_stride +
           head * p.out_head_stride;
  }

  // The score of a head's sink in units of log(2).
  float sink_of(int64_t head) const {
    if (p.sinks == nullptr) return -__builtin_inff();
    return load_partial(static_cast<const T*>(p.sinks) + head, 1)[0] * Scoring::kLog2E;
  }

  // A row at `position` sees [window_start(position), position].
  int64_t window_start(int64_t position) const {
    return p.sliding_window > 0 ? max_of(0, position + 1 - p.sliding_window) : 0;
  }

  // Positions of a segment that some row sees.
  Range seen_of(int64_t index) const {
    return {max_of(index * kSegment, window_start(positions[0])),
            min_of((index + 1) * kSegment, positions[tile.rows - 1] + 1)};
  }

  void find(int64_t start, Range seen, Chunk<Element>* found) {
    finder.find(start, {max_of(0, seen.begin - start), min_of(kChunk, seen.end - start)}, found);
  }

  // What a row sees of the chunk at `start`; both borders never fall from one row to the next.
  Range seen_by(int64_t row, int64_t start) const {
    return {max_of(0, window_start(positions[row]) - start), min_of(kChunk, positions[row] + 1 - start)};
  }

  bool see_all(int64_t start) const {
    return positions[0] + 1 >= start + kChunk && window_start(positions[tile.rows - 1]) <= start;
  }

  // Each stage is done for all rows before the next one, so that one row's chain of operations hides that of
  // others, and the keys leave the cache to the values.
  void add_chunk(int64_t start, const Chunk<Element>& chunk, const Chunk<Element>& next, const State& state) {
    const bool all = see_all(start);
    for (int64_t row = 0; row < tile.rows && !(all && is_all_seen); ++row) seen[row] = seen_by(row, start);
    is_all_seen = all;
    int64_t begin = 0, end = tile.rows;
    while (seen[begin].empty()) ++begin;
    while (seen[end - 1].empty()) --end;
    const Range rows{begin, end};
    for (int64_t i = 0; i < tile.kv_heads; ++i)
      score_head(chunk, i, rows, i + 1 < tile.kv_heads ? keys_of(chunk, i + 1) : values_of(chunk, 0));
    for (int64_t i = 0; i < tile.kv_heads; ++i) {
      const auto scales = reader.value_scales(chunk, i * p.v.head_stride, any_seen(rows));
      for (int64_t row = begin, at = i * tile.rows + begin; row < end; ++row, ++at)
        weigh<T>(scoring, seen[row], state, at, dots + at * kChunk, weights + at * kChunk, scales);
    }
    for (int64_t i = 0; i < tile.kv_heads; ++i)
      add_values_of_head(chunk, i, rows, state,
                         i + 1 < tile.kv_heads ? values_of(chunk, i + 1) : keys_of(next, 0));
  }

  // The positions that one of some rows sees.
  Range any_seen(Range rows) const { return {seen[rows.begin].begin, seen[rows.end - 1].end}; }

  // The memory of the tile's KV head i, to ask for.
  Stream<T> keys_of(const Chunk<Element>& chunk, int64_t i) const {
    return reader.requests(Stream<Element>::keys(chunk, i * p.k.head_stride));
  }
  Stream<T> values_of(const Chunk<Element>& chunk, int64_t i) const {
    return reader.requests(Stream<Element>::values(chunk, i * p.v.head_stride));
  }

  // Calls fn(row, rows, is_fetching) for rows that are computed together; of the numbers it makes constants.
  template <typename Fn>
  SPLITSERVE_INLINE static void each_group(Range rows, const Fn& fn) {
    for (int64_t row = rows.begin; row < rows.end; row += kGroupRows<T>) {
      with_count<kGroupRows<T>>(min_of(kGroupRows<T>, rows.end - row), [&](auto num_rows) {
        row == rows.begin ? fn(row, num_rows, Count<true>()) : fn(row, num_rows, Count<false>());
      });
    }
  }

  void score_head(const Chunk<Element>& chunk, int64_t i, Range rows, const Stream<T>& wanted) {
    const Range any = any_seen(rows), registers{any.begin / kLanes, (any.end + kLanes - 1) / kLanes};
    const int64_t first_at = i * tile.rows + rows.begin, head = i * p.k.head_stride;
    const Stream<T> keys = reader.keys(chunk, head, registers);
    if constexpr (kHasTiles<T>) {
      tiles.score(keys, registers, queries + first_at * query_stride, rows.end - rows.begin,
                  dots + first_at * kChunk, &wanted);
    } else {
      each_group(rows, [&](int64_t row, auto num_rows, auto is_fetching) {
        const int64_t at = i * tile.rows + row;
        const int64_t end = (seen[row + num_rows.value - 1].end + kLanes - 1) / kLanes;
        constexpr int kVecs = kGroupVecs<T, num_rows.value>;
        for (int64_t first = seen[row].begin / kLanes; first < end; first += kVecs) {
          with_count<kVecs>(min_of(kVecs, end - first), [&](auto vecs) {
            score<T, num_rows.value, vecs.value, is_fetching.value>(keys, first, queries + at * query_stride,
                                                                    p.head_dim, dots + at * kChunk, &wanted);
          });
        }
      });
    }
    reader.scale_keys(chunk, head, registers, dots + first_at * kChunk, rows.end - rows.begin);
  }

  void add_values_of_head(const Chunk<Element>& found, int64_t i, Range rows, const State& state,
                          const Stream<T>& wanted) {
    const auto [chunk, offset] = reader.values(found, i * p.v.head_stride, any_seen(rows));
    const int64_t whole = p.head_dim / kLanes * kLanes;
    if constexpr (kHasTiles<T>) {
      const int64_t at = i * tile.rows + rows.begin;
      tiles.add_values(chunk, offset, seen + rows.begin, rows.end - rows.begin, weights + at * kChunk,
                       state.values + at * width, &wanted);
    } else {
      each_group(rows, [&](int64_t row, auto num_rows, auto is_fetching) {
        const int64_t at = i * tile.rows + row;
        const Weights<T, num_rows.value> group{weights + at * kChunk, seen + row};
        float* totals = state.values + at * width;
        constexpr int kVecs = kGroupVecs<T, num_rows.value>;
        for (int64_t d = 0; d < whole; d += kVecs * kLanes) {
          with_count<kVecs>(min_of(kVecs, (whole - d) / kLanes), [&](auto vecs) {
            add_values<T, num_rows.value, vecs.value, is_fetching.value>(
                chunk, {offset, d, vecs.value * kLanes}, group, totals, width, &wanted);
          });
        }
        if (whole < p.head_dim)
          add_values<T, num_rows.value, 1, false, true>(chunk, {offset, whole, p.head_dim - whole}, group,
                                                        totals, width, &wanted);
      });
    }
  }

  const AttentionParams& p;
  const Tile tile;
  const int64_t group, width, query_stride;
  int64_t first_position;  // of the request's tokens
  const Scoring scoring;
  TilesFor<T> tiles;
  ChunkFinder<Element> finder;
  ChunkReader<T, Codes> reader;
  Chunk<Element> chunks[2];  // the memory of one is asked for while the other is computed
  int64_t positions[kTileRows<T>];
  Range seen[kTileRows<T>];  // of the chunk
  bool is_all_seen = false;
  alignas(64) Shared<T> queries[kTileRows<T> * kMaxHeadDim];
  alignas(64) float dots[kTileRows<T> * kChunk];
  alignas(64) Shared<T> weights[kTileRows<T> * kChunk];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
