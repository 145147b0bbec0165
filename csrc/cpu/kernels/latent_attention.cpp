// Attention over cached latents with an online softmax, one kernel for prefill, chunk and decode rows.
//
// As in attention.cpp a row walks what it sees in chunks and segments that are aligned to position 0, takes
// no part in what it does not see, and segments are merged in order. So its bits do not depend on the rows
// beside it, on how the prompt was cut, or on the number of threads.
#include <cstdlib>

#include "cpu/latent_tile.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Splits a call into tiles, and these into segments where tiles alone would leave threads without work.
template <typename T, typename Codes>
class LatentAttention {
  using Tile = LatentTile<T, Codes>;

 public:
  explicit LatentAttention(const LatentAttentionParams& params) : params(params), p(params.base) {}

  void run() const {
    int64_t num_tiles = 0, work = 0, max_segments = 1;
    for (int64_t r = 0; r < p.requests; ++r) {
      num_tiles += tiles_of(r);
      work += rows_of(r) * p.seq_lens[r] * p.head_dim;
      if (rows_of(r) > 0)
        max_segments = max_of(max_segments, (p.seq_lens[r] + kLatentSegment - 1) / kLatentSegment);
    }
    auto* tiles =
        static_cast<LatentRows*>(std::malloc(static_cast<size_t>(num_tiles + 1) * sizeof(LatentRows)));
    list_tiles(tiles);
    if (max_segments > 1 && num_tiles < 2 * num_threads()) {
      run_split(tiles, num_tiles, max_segments, work);
    } else {
      parallel_for(num_tiles, work, [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) run_tile(tiles[index]);
      });
    }
    std::free(tiles);
  }

 private:
  int64_t rows_of(int64_t r) const { return (p.cu_seqlens_q[r + 1] - p.cu_seqlens_q[r]) * p.heads; }
  int64_t tiles_of(int64_t r) const { return (rows_of(r) + kLatentRows - 1) / kLatentRows; }

  // The last tile of a request first: it sees the most.
  void list_tiles(LatentRows* tiles) const {
    for (int64_t r = 0; r < p.requests; ++r) {
      for (int64_t i = tiles_of(r) - 1; i >= 0; --i)
        *tiles++ = {r, i * kLatentRows, min_of(kLatentRows, rows_of(r) - i * kLatentRows)};
    }
  }

  void run_tile(const LatentRows& rows) const {
    alignas(64) float buffers[2][State::floats(kLatentRows, kMaxLatent)];
    const int64_t padded = Tile::padded(rows.count);
    const State total(buffers[0], padded, p.head_dim), part(buffers[1], padded, p.head_dim);
    Tile tile(params, rows);
    tile.prepare();
    total.clear(padded);
    tile.segment(0, total);
    for (int64_t s = 1; s < tile.end_segment(); ++s) {
      part.clear(padded);
      tile.segment(s, part);
      for (int64_t row = 0; row < rows.count; ++row) total.merge(row, part);
    }
    tile.write(total);
  }

  // Few rows over a long context: one task per segment, merged afterwards in the same order.
  void run_split(const LatentRows* tiles, int64_t num_tiles, int64_t max_segments, int64_t work) const {
    const int64_t floats = State::floats(kLatentRows, p.head_dim);
    auto* parts = static_cast<float*>(std::aligned_alloc(
        64, static_cast<size_t>(round_up(num_tiles * max_segments * floats, 16)) * sizeof(float)));
    const auto state_of = [&](int64_t index, int64_t s) {
      return State(parts + (index * max_segments + s) * floats, Tile::padded(tiles[index].count), p.head_dim);
    };
    parallel_tasks(num_tiles * max_segments, work, [&](int64_t task) {
      const int64_t index = task / max_segments, s = task % max_segments;
      Tile tile(params, tiles[index]);
      if (s >= tile.end_segment()) return;
      tile.prepare();
      state_of(index, s).clear(Tile::padded(tiles[index].count));
      tile.segment(s, state_of(index, s));
    });
    for (int64_t index = 0; index < num_tiles; ++index) {
      const Tile tile(params, tiles[index]);
      const State total = state_of(index, 0);
      for (int64_t s = 1; s < tile.end_segment(); ++s) {
        for (int64_t row = 0; row < tiles[index].count; ++row) total.merge(row, state_of(index, s));
      }
      tile.write(total);
    }
    std::free(parts);
  }

  const LatentAttentionParams& params;
  const AttentionParams& p;
};

}  // namespace

void latent_attention(const LatentAttentionParams& params) {
  if (params.base.dtype == DType::kFloat32) return LatentAttention<float, NoCodes>(params).run();
  with_bfloat16([&]<typename T>(T) {
    switch (params.base.format) {
      case CacheFormat::kPlain:
        return LatentAttention<T, NoCodes>(params).run();
      case CacheFormat::kInt8:
        return LatentAttention<T, Int8Codes>(params).run();
      case CacheFormat::kFp8:
        return LatentAttention<T, Fp8Codes>(params).run();
    }
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
