// The two products of adapters by the tiles of AMX.
//
// What the first one yields is float32, and meets the second matrix as the sum of two bfloat16, so that next
// to nothing is rounded on the way. Rows of a tile do not touch each other: a row's bits depend on its own
// inputs, whatever the number of rows, of which a single one takes this way, too.
#pragma once

#include "cpu/amx.h"
#include "cpu/lora_rows.h"
#include "cpu/scratch.h"

#if defined(__AMX_BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <>
class LoraProducts<BFloat16> {
 public:
  void shrink(const LoraParams& p, const LoraBlock& block) {
    for (int64_t row = 0; row < block.count; row += kTileSize) {
      const LoraBlock pass = pass_of(block, row);
      const Inputs inputs = inputs_of(p, pass);
      shape(pass.count, kTileDepth);
      for (int64_t column = 0; column < p.ranks[block.slot]; column += kTileSize)
        shrink_pass(p, pass, inputs, column, row == 0);
    }
  }

  // Of outputs [begin, end), from a multiple of kLoraCols on.
  template <typename Out>
  void expand(const LoraParams& p, const LoraBlock& block, int64_t begin, int64_t end) {
    const int64_t groups = (p.ranks[block.slot] + kTileSize - 1) / kTileSize;
    for (int64_t row = 0; row < block.count; row += kTileSize) {
      const LoraBlock pass = pass_of(block, row);
      split_inner(p, pass, groups);
      shape(pass.count, kTileSize);
      for (int64_t col = begin; col < end; col += kLoraCols) expand_pass<Out>(p, pass, groups, col, row == 0);
    }
  }

 private:
  static constexpr int64_t kBytes = sizeof(BFloat16), kPairBytes = 2 * kBytes;
  static constexpr int64_t kTileFloats = kTileSize * kTileSize, kMaxGroups = 256 / kTileSize;
  // How many steps ahead of its use the first matrix is fetched, and how many outputs the second one.
  static constexpr int64_t kStepsAhead = 4, kColsAhead = 2 * kLoraCols;
  enum Registers { kLeft = 4, kOtherLeft = 5, kRight = 6, kOtherRight = 7 };

  // Rows of a pass, at one distance from each other, as far as they are whole steps; and the rest.
  struct Inputs {
    const BFloat16* data;
    int64_t stride;
  };

  static LoraBlock pass_of(const LoraBlock& block, int64_t row) {
    const int64_t left = block.count - row;
    return {block.rows + row, left < kTileSize ? left : kTileSize, block.slot};
  }

  // Shapes the tiles for products of so many rows with 32 inputs, or with 16 ranks, at a time.
  void shape(int64_t rows, int64_t depth) {
    if (rows == shaped_rows && depth == shaped_depth) return;
    shaped_rows = rows;
    shaped_depth = depth;
    TileShapes shapes;
    shapes.set<0, 1, 2, 3>(rows, kTileRowBytes);
    shapes.set<kLeft, kOtherLeft>(rows, depth * kBytes);
    shapes.set<kRight, kOtherRight>(depth / 2, kTileRowBytes);
    shapes.use();
  }

  Inputs inputs_of(const LoraParams& p, const LoraBlock& pass) {
    const BFloat16* x = static_cast<const BFloat16*>(p.x);
    const int64_t distance = pass.count > 1 ? pass.rows[1] - pass.rows[0] : 1;
    bool is_even = true;
    for (int64_t i = 1; i < pass.count; ++i) is_even &= pass.rows[i] - pass.rows[i - 1] == distance;
    keep_last(p, pass);
    if (is_even) return {x + pass.rows[0] * p.x_stride, distance * p.x_stride};
    const int64_t whole = p.depth / kTileDepth * kTileDepth;
    // Rows lie apart, so that those of a tile do not compete for the same cache lines.
    const int64_t room = whole + kTileDepth;
    BFloat16* const gathered = static_cast<BFloat16*>(scratch(pass.count * room * kBytes));
    for (int64_t i = 0; i < pass.count; ++i) {
      std::memcpy(static_cast<void*>(gathered + i * room), x + pass.rows[i] * p.x_stride,
                  static_cast<size_t>(whole * kBytes));
    }
    return {gathered, room};
  }

  // The inputs of a step that is not whole, with zeros behind them.
  void keep_last(const LoraParams& p, const LoraBlock& pass) {
    const int64_t depth = p.depth % kTileDepth;
    if (depth == 0) return;
    std::memset(static_cast<void*>(last), 0, sizeof last);
    const BFloat16* x = static_cast<const BFloat16*>(p.x) + p.depth - depth;
    for (int64_t i = 0; i < pass.count; ++i) {
      std::memcpy(static_cast<void*>(last + i * kTileDepth), x + pass.rows[i] * p.x_stride,
                  static_cast<size_t>(depth * kBytes));
    }
  }

  void shrink_pass(const LoraParams& p, const LoraBlock& pass, const Inputs& inputs, int64_t column,
                   bool is_first) {
    const BFloat16* const a = static_cast<const BFloat16*>(p.a) + pass.slot * p.a_stride + 2 * column;
    const int64_t step_size = kTileDepth * p.rank, row_bytes = p.rank * kPairBytes;
    const int64_t steps = p.depth / kTileDepth, ahead = is_first ? kStepsAhead * step_size : 0;
    const auto add = [&](auto chain, int64_t step) __attribute__((always_inline)) {
      add_step<chain.value>({inputs.data + step * kTileDepth, inputs.stride}, a + step * step_size, row_bytes,
                            ahead);
    };
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    int64_t step = 0;
    for (; step + kLoraChains <= steps; step += kLoraChains) {
      add(Chain<0>{}, step), add(Chain<1>{}, step + 1), add(Chain<2>{}, step + 2), add(Chain<3>{}, step + 3);
    }
    if (step < steps) add(Chain<0>{}, step);
    if (step + 1 < steps) add(Chain<1>{}, step + 1);
    if (step + 2 < steps) add(Chain<2>{}, step + 2);
    if (p.depth % kTileDepth != 0)
      add_step<3>({last, kTileDepth}, last_weights(p, a + steps * step_size), kTileRowBytes, 0);
    tile_store<0>(sums, kTileRowBytes), tile_store<1>(sums + kTileFloats, kTileRowBytes);
    tile_store<2>(sums + 2 * kTileFloats, kTileRowBytes),
        tile_store<3>(sums + 3 * kTileFloats, kTileRowBytes);
    keep_inner(p, pass, column);
  }

  template <int kValue>
  struct Chain {
    static constexpr int value = kValue;
  };

  // 32 inputs by 16 ranks.
  template <int kChain>
  SPLITSERVE_INLINE static void add_step(const Inputs& inputs, const BFloat16* weights, int64_t row_bytes,
                                         int64_t ahead) {
    constexpr int kWeights = kChain % 2 == 0 ? kRight : kOtherRight;
    constexpr int kRows = kChain % 2 == 0 ? kLeft : kOtherLeft;
    tile_load<kWeights>(weights, row_bytes);
    tile_load<kRows>(inputs.data, inputs.stride * kBytes);
    tile_multiply<kChain, kRows, kWeights>();
    if (ahead == 0) return;
    const char* next = reinterpret_cast<const char*>(weights + ahead);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kTileSize; ++i) __builtin_prefetch(next + i * row_bytes);
  }

  // Of the inputs of a step that is not whole, with zeros behind them.
  const BFloat16* last_weights(const LoraParams& p, const BFloat16* a) {
    const int64_t pairs = (p.depth % kTileDepth + 1) / 2;
    std::memset(static_cast<void*>(weights), 0, sizeof weights);
    for (int64_t i = 0; i < pairs; ++i) {
      std::memcpy(static_cast<void*>(weights + i * 2 * kTileSize), a + i * 2 * p.rank,
                  static_cast<size_t>(kTileRowBytes));
    }
    return weights;
  }

  void keep_inner(const LoraParams& p, const LoraBlock& pass, int64_t column) const {
    for (int64_t i = 0; i < pass.count; ++i) {
      const float* own = sums + i * kTileSize;
      const Vec sum =
          (load(own) + load(own + kTileFloats)) + (load(own + 2 * kTileFloats) + load(own + 3 * kTileFloats));
      store(p.inner + pass.rows[i] * p.rank + column, sum * p.scales[pass.slot]);
    }
  }

  // What the rows of a pass have summed up: rounded, and what that leaves.
  void split_inner(const LoraParams& p, const LoraBlock& pass, int64_t groups) {
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t i = 0; i < pass.count; ++i) {
        const Vec inner = load(p.inner + pass.rows[i] * p.rank + group * kTileSize);
        const HalfVec high = to_bfloat16(inner);
        std::memcpy(static_cast<void*>(parts[group][0] + i * kTileSize), &high, sizeof high);
        store(parts[group][1] + i * kTileSize, inner - from_bfloat16(high));
      }
    }
  }

  template <typename Out>
  void expand_pass(const LoraParams& p, const LoraBlock& pass, int64_t groups, int64_t col, bool is_first) {
    const BFloat16* b = static_cast<const BFloat16*>(p.b) + pass.slot * p.b_stride + col * p.rank;
    constexpr int64_t kRowBytes = kLoraCols * kPairBytes;
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (int64_t group = 0; group < groups; ++group, b += kTileSize * kLoraCols) {
      tile_load<kLeft>(parts[group][0], kTileSize * kBytes);
      tile_load<kOtherLeft>(parts[group][1], kTileSize * kBytes);
      tile_load<kRight>(b, kRowBytes), tile_load<kOtherRight>(b + 2 * kTileSize, kRowBytes);
      if (is_first) fetch_weights(b + kColsAhead * p.rank);
      tile_multiply<0, kLeft, kRight>(), tile_multiply<1, kLeft, kOtherRight>();
      tile_multiply<0, kOtherLeft, kRight>(), tile_multiply<1, kOtherLeft, kOtherRight>();
      tile_load<kRight>(b + 4 * kTileSize, kRowBytes), tile_load<kOtherRight>(b + 6 * kTileSize, kRowBytes);
      tile_multiply<2, kLeft, kRight>(), tile_multiply<3, kLeft, kOtherRight>();
      tile_multiply<2, kOtherLeft, kRight>(), tile_multiply<3, kOtherLeft, kOtherRight>();
    }
    constexpr int64_t kSumBytes = kLoraCols * 4;
    tile_store<0>(sums, kSumBytes), tile_store<1>(sums + kTileSize, kSumBytes);
    tile_store<2>(sums + 2 * kTileSize, kSumBytes), tile_store<3>(sums + 3 * kTileSize, kSumBytes);
    add_outputs<Out>(p, pass, col);
  }

  // 16 ranks of 64 outputs.
  SPLITSERVE_INLINE static void fetch_weights(const BFloat16* b) {
#pragma GCC unroll 32
    for (int64_t i = 0; i < kTileSize * kLoraCols; i += 32) __builtin_prefetch(b + i);
  }

  template <typename Out>
  void add_outputs(const LoraParams& p, const LoraBlock& pass, int64_t col) const {
    const int64_t left = p.cols - col;
    for (int64_t i = 0; i < pass.count; ++i) {
      const float* delta = sums + i * kLoraCols;
      Out* const out = static_cast<Out*>(p.out) + pass.rows[i] * p.out_stride + col;
      fetch_outputs<Out, kLoraCols>(p, pass.rows[i], col + kLoraCols);
      for (int64_t c = 0; c < kLoraCols && c < left; c += kLanes)
        store_up_to(out + c, load_up_to(out + c, left - c) + load(delta + c), left - c);
    }
  }

  int64_t shaped_rows = 0, shaped_depth = 0;
  alignas(64) BFloat16 last[kTileSize * kTileDepth];
  alignas(64) BFloat16 weights[kTileDepth * kTileSize];
  alignas(64) BFloat16 parts[kMaxGroups][2][kTileFloats];
  alignas(64) float sums[kLoraChains * kTileFloats];
  const TileUse use;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
