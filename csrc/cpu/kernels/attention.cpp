// Paged attention with an online softmax, one kernel for prefill, chunk and decode rows.
//
// A row (one query head of one token) walks the positions it may see in chunks of kChunk and segments of
// kSegment, both aligned to absolute position 0. A segment starts from nothing; segments are merged in order.
// Positions the row must not see take no part in any operation of that row. So its bits do not depend on
// which rows share its tile, on how the prompt was cut into steps, or on whether segments ran on one thread
// or on many.
#include "cpu/attention.h"

#include <cmath>
#include <cstdlib>

#include "cpu/dot_tile.h"
#include "cpu/parallel.h"
#include "cpu/vec_math.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

inline constexpr int64_t kChunk = 64;
inline constexpr int64_t kSegment = 1024;
inline constexpr int64_t kRowsPerTile = 32;

int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Running state of the softmax of a tile's rows: maximum, sum of weights, weighted sum of values.
struct State {
  float* max;     // [rows]
  float* sum;     // [rows]
  float* keep;    // [rows], what the current chunk's maximum leaves of the values so far
  float* values;  // [rows, width]
};

// Some query tokens of one request with all query heads of one KV head: rows = tokens * group.
struct Tile {
  int64_t request, kv_head;
  int64_t first_token, tokens;  // rows of q
  int64_t first_position;       // absolute position of the first token
};

template <typename T>
class Attention {
 public:
  explicit Attention(const AttentionParams& params)
      : p(params),
        group(p.heads / p.kv_heads),
        tokens_per_tile(max_of(1, kRowsPerTile / group)),
        max_rows(tokens_per_tile * group),
        width(round_up(p.head_dim, kLanes)) {}

  void run() const {
    int64_t num_tiles = 0, work = 0, max_segments = 1;
    for (int64_t r = 0; r < p.requests; ++r) {
      num_tiles += tiles_of(r);
      work += query_len(r) * p.seq_lens[r];
      if (query_len(r) > 0) max_segments = max_of(max_segments, (p.seq_lens[r] + kSegment - 1) / kSegment);
    }
    work *= p.heads * p.head_dim;
    auto* starts =
        static_cast<TileStart*>(std::malloc(static_cast<size_t>(num_tiles + 1) * sizeof(TileStart)));
    list_tiles(starts);
    num_tiles *= p.kv_heads;
    if (max_segments > 1 && num_tiles < 2 * num_threads()) {
      run_split(starts, num_tiles, max_segments, work);
    } else {
      run_whole(starts, num_tiles, work);
    }
    std::free(starts);
  }

 private:
  int64_t query_len(int64_t r) const { return p.cu_seqlens_q[r + 1] - p.cu_seqlens_q[r]; }
  int64_t tiles_of(int64_t r) const { return (query_len(r) + tokens_per_tile - 1) / tokens_per_tile; }

  struct TileStart {
    int64_t request, offset;  // offset: query tokens of the request before the tile
  };

  void list_tiles(TileStart* starts) const {
    for (int64_t r = 0; r < p.requests; ++r) {
      for (int64_t i = 0; i < tiles_of(r); ++i) *starts++ = {r, i * tokens_per_tile};
    }
  }

  Tile tile_at(const TileStart* starts, int64_t index) const {
    const auto [r, offset] = starts[index / p.kv_heads];
    Tile tile;
    tile.kv_head = index % p.kv_heads;
    tile.request = r;
    tile.first_token = p.cu_seqlens_q[r] + offset;
    tile.tokens = min_of(tokens_per_tile, query_len(r) - offset);
    tile.first_position = p.seq_lens[r] - query_len(r) + offset;
    return tile;
  }

  int64_t state_floats() const { return max_rows * (3 + width); }
  State state_in(float* buffer) const {
    return {buffer, buffer + max_rows, buffer + 2 * max_rows, buffer + 3 * max_rows};
  }
  // Two states (running and segment), then the scores of one chunk.
  int64_t scratch_floats() const { return round_up(2 * state_floats() + max_rows * kChunk, 16); }

  static float* allocate(int64_t floats) {
    return static_cast<float*>(
        std::aligned_alloc(64, static_cast<size_t>(round_up(floats, 16)) * sizeof(float)));
  }

  void run_whole(const TileStart* starts, int64_t num_tiles, int64_t work) const {
    const int64_t workers = min_of(num_tiles, 4 * num_threads());
    parallel_tasks(workers, work, [&](int64_t worker) {
      float* scratch = allocate(scratch_floats());
      float* scores = scratch + 2 * state_floats();
      const State total = state_in(scratch), part = state_in(scratch + state_floats());
      // Interleaved, because later tiles of a prompt see more positions.
      for (int64_t index = worker; index < num_tiles; index += workers) {
        const Tile tile = tile_at(starts, index);
        clear(total);
        for (int64_t s = first_segment(tile); s < end_segment(tile); ++s) {
          clear(part);
          segment(tile, s, part, scores);
          merge(tile, total, part);
        }
        write(tile, total);
      }
      std::free(scratch);
    });
  }

  // Few rows over a long context: one task per segment, merged afterwards in the same order.
  void run_split(const TileStart* starts, int64_t num_tiles, int64_t max_segments, int64_t work) const {
    float* parts = allocate(num_tiles * max_segments * state_floats());
    parallel_tasks(num_tiles * max_segments, work, [&](int64_t task) {
      const Tile tile = tile_at(starts, task / max_segments);
      const int64_t s = task % max_segments;
      if (s < first_segment(tile) || s >= end_segment(tile)) return;
      float* scores = allocate(max_rows * kChunk);
      const State part = state_in(parts + task * state_floats());
      clear(part);
      segment(tile, s, part, scores);
      std::free(scores);
    });
    float* scratch = allocate(state_floats());
    const State total = state_in(scratch);
    for (int64_t index = 0; index < num_tiles; ++index) {
      const Tile tile = tile_at(starts, index);
      clear(total);
      for (int64_t s = first_segment(tile); s < end_segment(tile); ++s) {
        merge(tile, total, state_in(parts + (index * max_segments + s) * state_floats()));
      }
      write(tile, total);
    }
    std::free(scratch);
    std::free(parts);
  }

  // A row at `position` sees [window_start(position), position].
  int64_t window_start(int64_t position) const {
    return p.sliding_window > 0 ? max_of(0, position + 1 - p.sliding_window) : 0;
  }
  int64_t tile_end(const Tile& tile) const { return tile.first_position + tile.tokens; }
  int64_t first_segment(const Tile& tile) const { return window_start(tile.first_position) / kSegment; }
  int64_t end_segment(const Tile& tile) const { return (tile_end(tile) - 1) / kSegment + 1; }

  void clear(const State& state) const {
    for (int64_t i = 0; i < max_rows; ++i) {
      state.max[i] = -INFINITY;
      state.sum[i] = 0.0f;
    }
    std::memset(state.values, 0, static_cast<size_t>(max_rows * width) * sizeof(float));
  }

  const T* slot(const KvCache& cache, const Tile& tile, int64_t position) const {
    const int64_t block = p.block_tables[tile.request * p.block_table_stride + position / p.block_size];
    return static_cast<const T*>(cache.data) + block * cache.block_stride + tile.kv_head * cache.head_stride +
           position % p.block_size * cache.slot_stride;
  }

  const T* query(const Tile& tile, int64_t row) const {
    return static_cast<const T*>(p.q) + (tile.first_token + row / group) * p.q_token_stride +
           (tile.kv_head * group + row % group) * p.q_head_stride;
  }

  // The part of chunk [start, start + kChunk) that a row sees, relative to start; empty when begin >= end.
  struct Range {
    int64_t begin, end;
  };
  Range visible(const Tile& tile, int64_t row, int64_t start) const {
    const int64_t position = tile.first_position + row / group;
    return {max_of(0, window_start(position) - start), min_of(kChunk, position + 1 - start)};
  }

  void segment(const Tile& tile, int64_t index, const State& state, float* scores) const {
    const int64_t begin = max_of(index * kSegment, window_start(tile.first_position)) / kChunk * kChunk;
    const int64_t end = min_of((index + 1) * kSegment, tile_end(tile));
    for (int64_t start = begin; start < end; start += kChunk) {
      // Only positions some row of the tile sees are touched: the rest of the block table may be stale.
      const int64_t from = max_of(0, window_start(tile.first_position) - start);
      const int64_t to = min_of(kChunk, end - start);
      const T* keys[kChunk];
      const T* values[kChunk];
      for (int64_t j = from; j < to; ++j) {
        keys[j] = slot(p.k, tile, start + j);
        values[j] = slot(p.v, tile, start + j);
      }
      const int64_t rows = tile.tokens * group;
      score(tile, rows, keys, from, to, scores);
      for (int64_t row = 0; row < rows; ++row)
        weigh(visible(tile, row, start), row, state, scores + row * kChunk);
      int64_t row = 0;
      for (; row + kTileRows <= rows; row += kTileRows) {
        add_values<kTileRows>(tile, row, start, values, state, scores);
      }
      for (; row < rows; ++row) add_values<1>(tile, row, start, values, state, scores);
    }
  }

  // scores[row, j] = q[row] . k[j] for j in [from, to)
  void score(const Tile& tile, int64_t rows, const T* const* keys, int64_t from, int64_t to,
             float* scores) const {
    int64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows)
      score_rows<kTileRows>(tile, row, keys, from, to, scores);
    for (; row < rows; ++row) score_rows<1>(tile, row, keys, from, to, scores);
  }

  template <int kRows>
  void score_rows(const Tile& tile, int64_t row, const T* const* keys, int64_t from, int64_t to,
                  float* scores) const {
    constexpr int kCols = kRows == 1 ? 4 : kTileCols;
    const T* queries[kRows];
    for (int i = 0; i < kRows; ++i) queries[i] = query(tile, row + i);
    int64_t j = from;
    for (; j + kCols <= to; j += kCols)
      score_tile<kRows, kCols>(queries, keys + j, scores + row * kChunk + j);
    for (; j < to; ++j) score_tile<kRows, 1>(queries, keys + j, scores + row * kChunk + j);
  }

  template <int kRows, int kCols>
  void score_tile(const T* const* queries, const T* const* keys, float* scores) const {
    float tile[kRows * kCols];
    dot_tile<T, kRows, kCols>(queries, keys, p.head_dim, tile);
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kCols; ++j) scores[i * kChunk + j] = tile[i * kCols + j];
    }
  }

  // Turns a row's scores into weights exp(score - max).
  void weigh(Range range, int64_t row, const State& state, float* scores) const {
    if (range.begin >= range.end) return;
    for (int64_t j = 0; j < range.begin; ++j) scores[j] = -INFINITY;
    for (int64_t j = range.end; j < kChunk; ++j) scores[j] = -INFINITY;
    Vec highest = broadcast(-INFINITY);
    for (int64_t j = 0; j < kChunk; j += kLanes) {
      Vec s = load(scores + j) * p.scale;
      if (p.softcap > 0.0f) {
        const Vec capped = p.softcap * tanh(s / p.softcap);
        s = s > broadcast(-INFINITY) ? capped : s;
      }
      store(scores + j, s);
      highest = max(highest, s);
    }
    const float old_max = state.max[row];
    const float chunk_max = max_lanes(highest);
    const float new_max = old_max > chunk_max ? old_max : chunk_max;
    Vec sum{};
    for (int64_t j = 0; j < kChunk; j += kLanes) {
      const Vec weight = exp(load(scores + j) - new_max);
      store(scores + j, weight);
      sum = sum + weight;
    }
    const float keep = exp(old_max - new_max);
    state.max[row] = new_max;
    state.sum[row] = state.sum[row] * keep + sum_lanes(sum);
    state.keep[row] = keep;
  }

  // Some rows of a tile and what each sees of the chunk: they differ at its ends and share its middle.
  template <int kRows>
  struct Rows {
    Range all[kRows];
    Range shared;  // empty, at the end of every row, if there is no common part
  };

  template <int kRows>
  Rows<kRows> rows_of(const Tile& tile, int64_t row, int64_t start) const {
    Rows<kRows> rows;
    rows.shared = {0, kChunk};
    for (int i = 0; i < kRows; ++i) {
      rows.all[i] = visible(tile, row + i, start);
      rows.shared.begin = max_of(rows.shared.begin, rows.all[i].begin);
      rows.shared.end = min_of(rows.shared.end, rows.all[i].end);
    }
    if (rows.shared.begin >= rows.shared.end) rows.shared = {kChunk, kChunk};
    return rows;
  }

  // values[row + i] = values[row + i] * keep + weighted sum of the chunk's values. The chunk is summed from
  // zero: that loses less than adding each position to a long running sum.
  template <int kRows>
  void add_values(const Tile& tile, int64_t row, int64_t start, const T* const* values, const State& state,
                  const float* scores) const {
    constexpr int kStrip = kTileCols;
    const Rows<kRows> rows = rows_of<kRows>(tile, row, start);
    int64_t d = 0;
    for (; d + kStrip * kLanes <= p.head_dim; d += kStrip * kLanes) {
      add_strip<kRows, kStrip>(rows, row, d, values, state, scores + row * kChunk);
    }
    for (; d < p.head_dim; d += kLanes)
      add_strip<kRows, 1>(rows, row, d, values, state, scores + row * kChunk);
  }

  template <int kRows, int kVecs>
  SPLITSERVE_INLINE void add_strip(const Rows<kRows>& rows, int64_t row, int64_t d, const T* const* values,
                                   const State& state, const float* weights) const {
    Vec acc[kRows][kVecs] = {};
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Range before{rows.all[i].begin, min_of(rows.shared.begin, rows.all[i].end)};
      add_weighted<1, kVecs>(acc + i, weights + i * kChunk, values, d, before);
    }
    add_weighted<kRows, kVecs>(acc, weights, values, d, rows.shared);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      add_weighted<1, kVecs>(acc + i, weights + i * kChunk, values, d, {rows.shared.end, rows.all[i].end});
      if (rows.all[i].begin >= rows.all[i].end) continue;
      float* sums = state.values + (row + i) * width + d;
      for (int v = 0; v < kVecs; ++v) {
        store(sums + v * kLanes, load(sums + v * kLanes) * state.keep[row + i] + acc[i][v]);
      }
    }
  }

  // acc[i] += sum over j of the range, in order, of weights[i, j] * values[j]
  template <int kRows, int kVecs>
  SPLITSERVE_INLINE void add_weighted(Vec (*acc)[kVecs], const float* weights, const T* const* values,
                                      int64_t d, Range range) const {
    for (int64_t j = range.begin; j < range.end; ++j) {
      Vec value[kVecs];
      if constexpr (kVecs == 1) {
        value[0] = load_up_to(values[j] + d, p.head_dim - d);
      } else {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) value[v] = load(values[j] + d + v * kLanes);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Vec weight = broadcast(weights[i * kChunk + j]);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) acc[i][v] = fma(weight, value[v], acc[i][v]);
      }
    }
  }

  void merge(const Tile& tile, const State& total, const State& part) const {
    for (int64_t row = 0; row < tile.tokens * group; ++row) {
      // A row that saw nothing in this segment is left alone.
      if (part.sum[row] == 0.0f) continue;
      const float new_max = total.max[row] > part.max[row] ? total.max[row] : part.max[row];
      const float keep = exp(total.max[row] - new_max), take = exp(part.max[row] - new_max);
      total.max[row] = new_max;
      total.sum[row] = total.sum[row] * keep + part.sum[row] * take;
      for (int64_t d = row * width; d < (row + 1) * width; d += kLanes) {
        store(total.values + d, load(total.values + d) * keep + load(part.values + d) * take);
      }
    }
  }

  void write(const Tile& tile, const State& total) const {
    for (int64_t row = 0; row < tile.tokens * group; ++row) {
      T* out = static_cast<T*>(p.out) + (tile.first_token + row / group) * p.out_token_stride +
               (tile.kv_head * group + row % group) * p.out_head_stride;
      const float inverse = 1.0f / total.sum[row];
      for (int64_t d = 0; d < p.head_dim; d += kLanes) {
        store_up_to(out + d, load(total.values + row * width + d) * inverse, p.head_dim - d);
      }
    }
  }

  const AttentionParams& p;
  const int64_t group, tokens_per_tile, max_rows, width;
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
