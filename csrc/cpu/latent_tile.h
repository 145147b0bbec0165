// Computes one tile of latent attention: rows of a request, chunk by chunk.
#pragma once

#include "cpu/attention_state.h"
#include "cpu/kv_block.h"
#include "cpu/latent_codes.h"
#include "cpu/latent_products.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

inline constexpr int64_t kLatentSegment = 1024;

// Some of the rows of a request: those of its tokens, heads of a token side by side.
struct LatentRows {
  int64_t request, first, count;
};

// What a tile keeps of the rows that it works on, in the form in which they are multiplied.
template <typename T>
struct LatentQueries {
  alignas(64) T packed[kLatentRows * (kMaxLatent + kMaxRotary)];  // [width / kPair, rows, kPair]
  alignas(64) T lines[kLanes * (kMaxLatent + kMaxRotary)];        // of a register of rows, as they were
};

// Where the latents of a chunk lie in pairs of positions.
template <typename T>
struct LatentValues {
  Chunk<T> places;

  void join(const LatentChunk<T>& chunk, int64_t, int64_t) {
    for (int64_t j = 0; j < chunk.count; ++j) places.values[j] = chunk.rows[j];
  }
};

template <typename T>
  requires(sizeof(T) == sizeof(BFloat16))
struct LatentValues<T> {
  Chunk<T> places;
  alignas(64) T joined[kChunk * kMaxLatent];

  // Of the first `count` positions, with zeros behind them.
  void join(const LatentChunk<T>& chunk, int64_t count, int64_t latent) {
    for (int64_t j = 0; j < kChunk; j += 2) {
      T* const to = joined + j * latent;
      join_latents(to, j < count ? chunk.rows[j] : nullptr, j + 1 < count ? chunk.rows[j + 1] : nullptr,
                   latent);
      places.values[j / 2] = to;
    }
  }
};

// The cached rows of a chunk, where the cache holds codes.
template <typename T, typename Codes>
struct LatentNumbers {
  alignas(64) T rows[kChunk * (kMaxLatent + kMaxRotary)];
};

template <typename T>
struct LatentNumbers<T, NoCodes> {};

template <typename T, typename Codes>
class LatentTile {
 public:
  LatentTile(const LatentAttentionParams& params, const LatentRows& tile)
      : p(params.base),
        rotary(params),
        tile(tile),
        shape{p.head_dim + params.rotary, p.head_dim, padded(tile.count)},
        scoring(p),
        table(p.block_tables + tile.request * p.block_table_stride) {
    const int64_t tokens = p.cu_seqlens_q[tile.request + 1] - p.cu_seqlens_q[tile.request];
    first_position = p.seq_lens[tile.request] - tokens;
  }

  // Rows of its states.
  static int64_t padded(int64_t rows) { return round_up(rows, kLanes); }

  int64_t end_segment() const { return last_position() / kLatentSegment + 1; }

  // Once, before the first segment.
  void prepare() {
    for (int64_t first = 0; first < shape.rows; first += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) copy_query(first + i, queries.lines + i * shape.width);
      for (int64_t unit = 0; unit < shape.width / kPair; unit += kLanes) {
        transpose_units(reinterpret_cast<char*>(queries.packed) + (unit * shape.rows + first) * 4,
                        shape.rows * 4,
                        {reinterpret_cast<const char*>(queries.lines) + unit * 4,
                         shape.width * static_cast<int64_t>(sizeof(T))});
      }
    }
    std::memset(weights, 0, sizeof weights);
    std::memset(sums, 0, sizeof sums);
  }

  // Adds what the rows see of segment `index` to a state that has seen nothing.
  void segment(int64_t index, const State& state) {
    const int64_t first = index * kLatentSegment, end = min_of(first + kLatentSegment, last_position() + 1);
    for (int64_t start = first; start < end; start += kChunk) {
      if constexpr (kIsPlain) {
        chunk.count = find(start, end, chunk.rows);
        chunk.num_ahead = find(start + kChunk, end, chunk.ahead);
      } else {
        read(start, end);
      }
      add_chunk(start, state);
    }
  }

  void write(const State& total) const {
    for (int64_t row = 0; row < tile.count; ++row) {
      T* out = static_cast<T*>(p.out) + token_of(row) * p.out_token_stride + head_of(row) * p.out_head_stride;
      const float inverse = total.inverse_sum(row, -__builtin_inff());
      // A zero may have got its sign from a value that the row did not see, by a weight of zero.
      for (int64_t d = 0; d < shape.latent; d += kLanes)
        store(out + d, load(total.values + row * shape.latent + d) * inverse + 0.0f);
    }
  }

 private:
  static constexpr int kPair = DotStep<T>::kPair;
  static constexpr bool kIsPlain = Codes::kFormat == CacheFormat::kPlain;
#if defined(__AMX_BF16__)
  static constexpr bool kByTiles = sizeof(T) == 2;
#else
  static constexpr bool kByTiles = false;
#endif

  int64_t token_of(int64_t row) const { return p.cu_seqlens_q[tile.request] + (tile.first + row) / p.heads; }
  int64_t head_of(int64_t row) const { return (tile.first + row) % p.heads; }
  int64_t position_of(int64_t row) const { return first_position + (tile.first + row) / p.heads; }
  int64_t last_position() const { return position_of(tile.count - 1); }

  // Rows behind the last one are zeros.
  void copy_query(int64_t row, T* to) const {
    if (row >= tile.count) {
      std::memset(to, 0, static_cast<size_t>(shape.width) * sizeof(T));
      return;
    }
    const int64_t token = token_of(row), head = head_of(row);
    const T* latent = static_cast<const T*>(p.q) + token * p.q_token_stride + head * p.q_head_stride;
    const T* turned = static_cast<const T*>(rotary.q_rotary) + token * rotary.rotary_token_stride +
                      head * rotary.rotary_head_stride;
    std::memcpy(to, latent, static_cast<size_t>(shape.latent) * sizeof(T));
    std::memcpy(to + shape.latent, turned, static_cast<size_t>(rotary.rotary) * sizeof(T));
  }

  // Points to the cached rows from position `start` on, up to a chunk or `end`; returns how many these are.
  int64_t find(int64_t start, int64_t end, const T** rows) const {
    const int64_t count = max_of(0, min_of(kChunk, end - start));
    for (int64_t j = 0; j < count; ++j) rows[j] = cached<T>(start + j, shape.width);
    return count;
  }

  // The cached row of a position, of `size` elements.
  template <typename Element>
  const Element* cached(int64_t position, int64_t size) const {
    const int64_t block = table[position / p.block_size];
    return static_cast<const Element*>(p.k.data) + block * p.k.block_stride + position % p.block_size * size;
  }

  // Makes numbers of the codes from position `start` on, up to a chunk or `end`.
  void read(int64_t start, int64_t end) {
    const LatentRow row{shape.latent, shape.width - shape.latent};
    const int64_t size = shape.width + latent_scale_bytes(Codes::kFormat);
    chunk.count = min_of(kChunk, end - start);
    chunk.num_ahead = 0;
    for (int64_t j = 0; j < chunk.count; ++j) {
      T* const numbers = decoded.rows + j * shape.width;
      if (start + j + kChunk < end) fetch(cached<uint8_t>(start + j + kChunk, size), size);
      decode_row<Codes>(numbers, cached<uint8_t>(start + j, size), row);
      chunk.rows[j] = numbers;
    }
  }

  static void fetch(const uint8_t* codes, int64_t size) {
    for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(codes + i, 0, 2);
  }

  void add_chunk(int64_t start, const State& state) {
    score();
    for (int64_t row = 0; row < shape.rows; row += kLanes) {
      for (int64_t j = 0; j < kChunk; j += kLanes) {
        transpose_units(reinterpret_cast<char*>(dots + row * kChunk + j), kChunk * 4,
                        {reinterpret_cast<const char*>(sums + j * shape.rows + row), shape.rows * 4});
      }
    }
    int64_t begin = 0;
    for (int64_t row = 0; row < tile.count; ++row) {
      seen[row] = {0, min_of(kChunk, position_of(row) + 1 - start)};
      if (!seen[row].empty()) {
        weigh<T>(scoring, seen[row], state, row, dots + row * kChunk, weights + row * kChunk);
        continue;
      }
      std::memset(weights + row * kChunk, 0, kChunk * sizeof *weights);
      begin = row + 1;
    }
    add(begin, state);
  }

  void score() {
#if defined(__AMX_BF16__)
    if constexpr (kByTiles) {
      for (int64_t j = 0; j < chunk.count; j += kTileSize)
        tiles.score(shape, chunk, j, in_one_piece(j), queries.packed, sums);
      return;
    }
#endif
    score_latents<T>(shape, chunk, queries.packed, sums);
  }

  // From row `begin` on all see some of the chunk.
  void add(int64_t begin, const State& state) {
#if defined(__AMX_BF16__)
    if constexpr (kByTiles) {
      if (!are_finite(seen[begin].end)) return add_apart(begin, state);
      values.join(chunk, chunk.count, shape.latent);
      for (int64_t row = begin / kTileSize * kTileSize; row < tile.count; row += kTileSize) {
        tiles.add(shape, values.joined, weights + row * kChunk, state.values + row * shape.latent);
      }
      return;
    }
#endif
    values.join(chunk, chunk.count, shape.latent);
    add_latents<T>(shape, values.places, weights, seen, {begin, tile.count}, state.values);
  }

#if defined(__AMX_BF16__)
  // Sixteen cached rows from row j of the chunk on, or as many as there are, at the distance of one row.
  const T* in_one_piece(int64_t j) {
    if (!kIsPlain || p.block_size % kTileSize == 0) return chunk.rows[j];
    for (int64_t i = j; i < j + kTileSize && i < chunk.count; ++i) {
      std::memcpy(gathered + (i - j) * shape.width, chunk.rows[i],
                  static_cast<size_t>(shape.width) * sizeof(T));
    }
    return gathered;
  }

  // Whether the latents from row `first` of the chunk on, which some rows see and others do not, hold no
  // infinity and no NaN: a weight of zero does not hide them.
  bool are_finite(int64_t first) const {
    UintVec worst{};
    for (int64_t j = first; j < chunk.count; ++j) {
      for (int64_t d = 0; d < shape.latent; d += kLanes) {
        const Vec value = load(chunk.rows[j] + d);
        worst |= as_uint(value - value);
      }
    }
    const Vec rest = as_float(worst);
    return !any(rest != rest);
  }

  // Each row by itself, with zeros in place of what it does not see.
  void add_apart(int64_t begin, const State& state) {
    alignas(64) T own_weights[kTileSize * kChunk] = {};
    alignas(64) float own_totals[kTileSize * kMaxLatent] = {};
    for (int64_t row = begin; row < tile.count; ++row) {
      float* const total = state.values + row * shape.latent;
      values.join(chunk, seen[row].end, shape.latent);
      std::memcpy(own_weights, weights + row * kChunk, kChunk * sizeof(T));
      std::memcpy(own_totals, total, static_cast<size_t>(shape.latent) * sizeof(float));
      tiles.add(shape, values.joined, own_weights, own_totals);
      std::memcpy(total, own_totals, static_cast<size_t>(shape.latent) * sizeof(float));
    }
  }

  LatentTiles tiles;
  alignas(64) T gathered[kTileSize * (kMaxLatent + kMaxRotary)];
#endif

  const AttentionParams& p;
  const LatentAttentionParams& rotary;
  const LatentRows tile;
  const LatentShape shape;
  const Scoring scoring;
  const int32_t* table;
  int64_t first_position;  // of the request's tokens
  LatentChunk<T> chunk;
  LatentNumbers<T, Codes> decoded;
  LatentQueries<T> queries;
  LatentValues<T> values;
  Range seen[kLatentRows];                       // of the chunk
  alignas(64) float sums[kChunk * kLatentRows];  // [kChunk, rows]
  alignas(64) float dots[kLatentRows * kChunk];  // the same by rows
  alignas(64) Shared<T> weights[kLatentRows * kChunk];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
