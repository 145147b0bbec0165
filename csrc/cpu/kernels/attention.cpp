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

#include "cpu/attention_tile.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Tiles that KV heads are not joined below.
inline constexpr int64_t kTilesPerThread = 4;

// Splits a call into tiles, and these into segments where tiles alone would leave threads without work.
template <typename T, typename Codes>
class Attention {
 public:
  explicit Attention(const AttentionParams& params)
      : p(params), group(p.heads / p.kv_heads), width(round_up(p.head_dim, kLanes)) {}

  void run() const {
    int64_t num_tiles = 0, work = 0, max_segments = 1;
    for (int64_t r = 0; r < p.requests; ++r) {
      num_tiles += tiles_of(r);
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
  using RowTile = TileAttention<T, Codes>;
  using Element = typename RowTile::Element;
  using Finder = ChunkFinder<Element>;

  int64_t rows_of(int64_t r) const { return (p.cu_seqlens_q[r + 1] - p.cu_seqlens_q[r]) * group; }

  // KV heads that share a tile of request r. They lie side by side in a block, so that few rows of many
  // requests read longer stretches of memory; but there must be work for all threads.
  int64_t heads_of(int64_t r) const {
    const int64_t fitting = kTileRows<T> / max_of(1, rows_of(r));
    const int64_t enough = p.requests * p.kv_heads / (kTilesPerThread * num_threads());
    const int64_t heads = min_of(p.kv_heads, min_of(fitting, enough));
    return Finder::reads_in_place(p) ? max_of(1, heads) : 1;
  }

  static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
  int64_t tiles_of(int64_t r) const {
    return ceil_div(rows_of(r), kTileRows<T>) * ceil_div(p.kv_heads, heads_of(r));
  }

  // The last tile of a request first: it sees the most.
  void list_tiles(Tile* tiles) const {
    for (int64_t r = 0; r < p.requests; ++r) {
      const int64_t heads = heads_of(r);
      for (int64_t i = ceil_div(rows_of(r), kTileRows<T>) - 1; i >= 0; --i) {
        const int64_t first = i * kTileRows<T>, rows = min_of(kTileRows<T>, rows_of(r) - first);
        for (int64_t head = 0; head < p.kv_heads; head += heads)
          *tiles++ = {r, head, min_of(heads, p.kv_heads - head), first, rows};
      }
    }
  }

  void run_whole(const Tile* tiles, int64_t num_tiles, int64_t work) const {
    parallel_for(num_tiles, work, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) {
        // A tile of few chunks, as in decoding, would wait long for its first one.
        Chunk<Element> after;
        const bool is_known = index + 1 < end && Finder::reads_in_place(p);
        if (is_known) {
          RowTile next(p, tiles[index + 1]);
          next.find_first(&after);
          next.fetch_rows();
        }
        run_tile(tiles[index], is_known ? &after : nullptr);
      }
    });
  }

  void run_tile(const Tile& described, const Chunk<Element>* after) const {
    alignas(64) float buffers[2][State::floats(kTileRows<T>, kMaxHeadDim)];
    const int64_t rows = described.all_rows();
    const State total(buffers[0], rows, width), part(buffers[1], rows, width);
    RowTile tile(p, described);
    tile.prepare();
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
    const int64_t floats = State::floats(kTileRows<T>, width);
    auto* parts = static_cast<float*>(std::aligned_alloc(
        64, static_cast<size_t>(round_up(num_tiles * max_segments * floats, 16)) * sizeof(float)));
    const auto state_of = [&](int64_t index, int64_t s) {
      return State(parts + (index * max_segments + s) * floats, tiles[index].all_rows(), width);
    };
    parallel_tasks(num_tiles * max_segments, work, [&](int64_t task) {
      const int64_t index = task / max_segments, s = task % max_segments;
      RowTile tile(p, tiles[index]);
      if (s < tile.first_segment() || s >= tile.end_segment()) return;
      tile.prepare();
      state_of(index, s).clear(tiles[index].all_rows());
      tile.segment(s, state_of(index, s));
    });
    for (int64_t index = 0; index < num_tiles; ++index) {
      const RowTile tile(p, tiles[index]);
      const State total = state_of(index, tile.first_segment());
      for (int64_t s = tile.first_segment() + 1; s < tile.end_segment(); ++s) {
        for (int64_t row = 0; row < tiles[index].all_rows(); ++row) total.merge(row, state_of(index, s));
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
  if (params.dtype == DType::kFloat32) return Attention<float, NoCodes>(params).run();
  with_bfloat16([&]<typename T>(T) {
    switch (params.format) {
      case CacheFormat::kPlain:
        return Attention<T, NoCodes>(params).run();
      case CacheFormat::kInt8:
        return Attention<T, Int8Codes>(params).run();
      case CacheFormat::kFp8:
        return Attention<T, Fp8Codes>(params).run();
    }
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
