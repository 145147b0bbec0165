// The attention of some rows of one sequence that read the same KV head, without a cache: the head's keys and
// values are first brought into the order in which registers take them.
#pragma once

#include "common/whole_attention.h"
#include "cpu/attention_amx.h"
#include "cpu/attention_products.h"
#include "cpu/attention_state.h"
#include "cpu/kv_block.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Keys and values of one KV head of a sequence in chunks of kChunk positions, each laid out as a block of the
// cache (attention_chunk.h). So a chunk lies in one piece, and its rows in different sets of the cache.
template <typename T>
class PackedHead {
 public:
  // Elements of memory for a sequence of that length.
  static int64_t elements(int64_t length, int64_t head_dim) {
    return 2 * round_up(length, kChunk) * head_dim;
  }

  PackedHead(T* memory, int64_t length, int64_t head_dim)
      : memory(memory), length(length), head_dim(head_dim) {}

  void pack(TokenRows keys, TokenRows values) const {
    for (int64_t start = 0; start < length; start += kChunk) {
      const int64_t count = min_of(kChunk, length - start);
      hide_keys(reinterpret_cast<char*>(keys_at(start)), count);
      const TokenRows key_rows{keys.data + start * keys.stride, keys.stride};
      const TokenRows value_rows{values.data + start * values.stride, values.stride};
      constexpr int64_t kElement = sizeof(T);
      write_keys(reinterpret_cast<char*>(keys_at(start)), kChunk, key_rows, count, head_dim * kElement / 4);
      write_values(static_cast<const T*>(nullptr), reinterpret_cast<char*>(values_at(start)), 0, value_rows,
                   count, head_dim);
    }
  }

  Chunk<T> chunk(int64_t start) const {
    constexpr int kPair = DotStep<T>::kPair;
    Chunk<T> found;
    found.key_stride = kChunk * kPair;
    for (int64_t v = 0; v < kChunk / kLanes; ++v) found.keys[v] = keys_at(start) + v * kLanes * kPair;
    for (int64_t pair = 0; pair < kChunk / kPair; ++pair)
      found.values[pair] = values_at(start) + pair * head_dim * kPair;
    return found;
  }

 private:
  // What a register holds of keys beyond the end is never seen, but is multiplied: it is zero. Of values
  // nothing beyond it is read, or it is masked.
  void hide_keys(char* keys, int64_t count) const {
    const int64_t whole = count / kLanes * kLanes, units = head_dim * static_cast<int64_t>(sizeof(T)) / 4;
    if (whole == count) return;
    for (int64_t unit = 0; unit < units; ++unit) store_units(keys + (unit * kChunk + whole) * 4, UintVec{});
  }

  T* keys_at(int64_t start) const { return memory + 2 * start * head_dim; }
  T* values_at(int64_t start) const { return keys_at(start) + kChunk * head_dim; }

  T* memory;
  int64_t length, head_dim;
};

// Rows that share what is loaded of keys and values: enough for the products, few enough for the cache.
template <typename T>
inline constexpr int64_t kWholeRows = kHasTiles<T> ? 32 : 48;

template <typename T>
class WholeTile {
 public:
  WholeTile(const WholeAttentionParams& params, int64_t sequence, int64_t kv_head)
      : p(params),
        kv_head(kv_head),
        group(params.heads / params.kv_heads),
        width(round_up(params.head_dim, kLanes)),
        query_stride(TilesFor<T>::query_stride(params.head_dim)),
        first_token(params.cu_seqlens[sequence]),
        length(params.cu_seqlens[sequence + 1] - params.cu_seqlens[sequence]),
        like(like_of(params)),
        scoring(like),
        tiles(like) {}

  // Computes `count` rows from `first` on, among the length * group rows that read the KV head: heads of a
  // token side by side.
  void run(const PackedHead<T>& packed, int64_t first, int64_t count) {
    const State state(sums, count, width);
    first_row = first, rows = count;
    state.clear(rows);
    copy_queries();
    const int64_t begin = seen_by(0, 0).begin / kChunk * kChunk;
    const int64_t end = p.reach > 0 ? min_of(length, place_of(rows - 1).position + p.reach + 1) : length;
    for (int64_t start = begin; start < end; start += kChunk) add_chunk(packed.chunk(start), start, state);
    write(state);
  }

 private:
  static constexpr int kPair = DotStep<T>::kPair;
  template <int kRows>
  static constexpr int kVecs = kGroupVecs<T, kRows>;

  // What the parts of paged attention have to know: chunks are as blocks of a cache.
  static AttentionParams like_of(const WholeAttentionParams& params) {
    AttentionParams like{};
    like.scale = params.scale;
    like.head_dim = params.head_dim;
    like.block_size = kChunk;
    like.format = CacheFormat::kPlain;
    return like;
  }

  // The token of a row within its sequence, and its head.
  struct Place {
    int64_t position, head;
  };

  SPLITSERVE_INLINE Place place_of(int64_t row) const {
    const int64_t index = first_row + row;
    // The common case, without a division.
    if (group == 1) return {index, kv_head};
    return {index / group, kv_head * group + index % group};
  }

  const T* query_of(int64_t row) const {
    const Place place = place_of(row);
    return static_cast<const T*>(p.q.data) + (first_token + place.position) * p.q.token_stride +
           place.head * p.q.head_stride;
  }

  T* out_of(int64_t row) const {
    const Place place = place_of(row);
    return static_cast<T*>(p.out) + (first_token + place.position) * p.out_token_stride +
           place.head * p.out_head_stride;
  }

  // Brings the rows' queries together, with zeros behind each up to query_stride.
  void copy_queries() {
    for (int64_t row = 0; row < rows; ++row) {
      Shared<T>* const query = queries + row * query_stride;
      copy_shared(query, query_of(row), p.head_dim);
      if (query_stride > p.head_dim)
        std::memset(query + p.head_dim, 0, static_cast<size_t>(query_stride - p.head_dim) * sizeof *query);
    }
  }

  // What a row sees of the chunk at `start`; both borders never fall from one row to the next.
  Range seen_by(int64_t row, int64_t start) const {
    const int64_t end = min_of(kChunk, length - start);
    if (p.reach == 0) return {0, end};
    const int64_t position = place_of(row).position - start;
    return {max_of(0, position - p.reach), min_of(end, position + p.reach + 1)};
  }

  // Each stage is done for all rows before the next one, so that one row's chain of operations hides that of
  // others.
  void add_chunk(const Chunk<T>& chunk, int64_t start, const State& state) {
    for (int64_t row = 0; row < rows; ++row) seen[row] = seen_by(row, start);
    Range some{0, rows};
    while (some.begin < some.end && seen[some.begin].empty()) ++some.begin;
    while (some.begin < some.end && seen[some.end - 1].empty()) --some.end;
    if (some.empty()) return;
    score_all(chunk, some);
    for (int64_t row = some.begin; row < some.end; ++row)
      weigh<T>(scoring, seen[row], state, row, dots + row * kChunk, weights + row * kChunk);
    add_all(chunk, some, state);
  }

  void score_all(const Chunk<T>& chunk, Range some) {
    if constexpr (kHasTiles<T>) {
      const Range registers{seen[some.begin].begin / kLanes, (seen[some.end - 1].end + kLanes - 1) / kLanes};
      tiles.score(Stream<T>::keys(chunk, 0), registers, queries + some.begin * query_stride,
                  some.end - some.begin, dots + some.begin * kChunk, nullptr);
    } else {
      each_group(some, [&](int64_t row, auto num_rows) { score_rows<num_rows.value>(chunk, row); });
    }
  }

  void add_all(const Chunk<T>& chunk, Range some, const State& state) {
    if constexpr (kHasTiles<T>) {
      tiles.add_values(chunk, 0, seen + some.begin, some.end - some.begin, weights + some.begin * kChunk,
                       state.values + some.begin * width, nullptr);
    } else {
      each_group(some, [&](int64_t row, auto num_rows) { add_rows<num_rows.value>(chunk, row, state); });
    }
  }

  // Calls fn(row, rows) for rows that are computed together; of their number it makes a constant.
  template <typename Fn>
  SPLITSERVE_INLINE static void each_group(Range some, const Fn& fn) {
    for (int64_t row = some.begin; row < some.end; row += kGroupRows<T>)
      with_count<kGroupRows<T>>(min_of(kGroupRows<T>, some.end - row),
                                [&](auto num_rows) { fn(row, num_rows); });
  }

  template <int kRows>
  SPLITSERVE_INLINE void score_rows(const Chunk<T>& chunk, int64_t row) {
    const Stream<T> keys = Stream<T>::keys(chunk, 0);
    const int64_t end = (seen[row + kRows - 1].end + kLanes - 1) / kLanes;
    for (int64_t first = seen[row].begin / kLanes; first < end; first += kVecs<kRows>) {
      with_count<kVecs<kRows>>(min_of(kVecs<kRows>, end - first), [&](auto vecs) {
        score<T, kRows, vecs.value, false>(keys, first, queries + row * query_stride, p.head_dim,
                                           dots + row * kChunk, nullptr);
      });
    }
  }

  template <int kRows>
  SPLITSERVE_INLINE void add_rows(const Chunk<T>& chunk, int64_t row, const State& state) const {
    const int64_t whole = p.head_dim / kLanes * kLanes;
    const Weights<T, kRows> rows_weights{weights + row * kChunk, seen + row};
    float* totals = state.values + row * width;
    for (int64_t d = 0; d < whole; d += kVecs<kRows> * kLanes) {
      with_count<kVecs<kRows>>(min_of(kVecs<kRows>, (whole - d) / kLanes), [&](auto vecs) {
        add_values<T, kRows, vecs.value, false>(chunk, {0, d, vecs.value * kLanes}, rows_weights, totals,
                                                width, nullptr);
      });
    }
    if (whole < p.head_dim)
      add_values<T, kRows, 1, false, true>(chunk, {0, whole, p.head_dim - whole}, rows_weights, totals, width,
                                           nullptr);
  }

  void write(const State& state) const {
    for (int64_t row = 0; row < rows; ++row) {
      T* out = out_of(row);
      const float inverse = 1.0f / sum_lanes(load(state.sums + row * kLanes));
      for (int64_t d = 0; d < p.head_dim; d += kLanes) {
        Vec value = load(state.values + row * width + d) * inverse;
        // A zero may have got its sign from a value that the row did not see, by a weight of zero.
        if constexpr (kHasTiles<T>) value += 0.0f;
        store_up_to(out + d, value, p.head_dim - d);
      }
    }
  }

  const WholeAttentionParams& p;
  const int64_t kv_head, group, width, query_stride, first_token, length;
  const AttentionParams like;
  const Scoring scoring;
  TilesFor<T> tiles;
  int64_t first_row = 0, rows = 0;
  Range seen[kWholeRows<T>];  // of the chunk
  alignas(64) Shared<T> queries[kWholeRows<T> * kMaxHeadDim];
  alignas(64) float dots[kWholeRows<T> * kChunk];
  alignas(64) Shared<T> weights[kWholeRows<T> * kChunk];
  alignas(64) float sums[State::floats(kWholeRows<T>, kMaxHeadDim)];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
