// Blocks of rows against panels of a linear layer, in vector registers, for many rows: weights are decoded
// once for all rows of a block, a stretch of inputs at a time. They become bfloat16 on processors that
// multiply it fast, else floats, and so do the rows.
//
// Every lane of the sums walks the inputs from their start, in groups if they are scaled in groups, as in
// panel_tile.h: the bits are the same. So where a product of bfloat16 is an instruction, floats are
// multiplied as it does: of a pair the second input first, with denormals taken as zero and made zero.
#pragma once

#include <type_traits>

#include "cpu/linear_rows.h"

#if !defined(__AMX_BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Inputs that one step multiplies.
template <typename Decoded>
inline constexpr int64_t kStepInputs = DotStep<Decoded>::kPair;
// Whether floats stand for the pairs of an instruction that multiplies bfloat16.
template <typename Decoded>
inline constexpr bool kStandsForPairs = std::is_same_v<Decoded, float> && !DotStep<BFloat16>::kIsFloat;

inline constexpr int64_t kDecodedBlockRows = 256;
// Rows and registers of outputs whose sums stay in registers.
inline constexpr int kDecodedRows = kVecRegisters == 32 ? 12 : 6, kDecodedVecs = 2;
inline constexpr int64_t kDecodedCols = kDecodedVecs * kLanes;

// Groups of a stretch.
struct DecodedGroups {
  const float (*scales)[2][kPanelCols];  // scales and offsets
  const float* row_sums;                 // of the first row and group, or nullptr
  int64_t row_stride;                    // of row_sums
  int64_t steps;                         // of a group
};

// sums += x . weights [steps, 32], of kDecodedCols outputs.
template <int kRows, typename Decoded>
SPLITSERVE_INLINE void add_each(Vec (&sums)[kRows][kDecodedVecs], const InputRows<Decoded>& x,
                                const Decoded* weights, int64_t steps) {
  using Step = DotStep<Decoded>;
  for (int64_t step = 0; step < steps; ++step, weights += kStepInputs<Decoded> * kPanelCols) {
    const typename Step::Operand first = Step::load(weights), second = Step::load(weights + Step::kSize);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const typename Step::Operand input =
          Step::broadcast(x.data + i * x.stride + step * kStepInputs<Decoded>);
      sums[i][0] = Step::accumulate(sums[i][0], input, first);
      sums[i][1] = Step::accumulate(sums[i][1], input, second);
    }
  }
}

// The same with the bits of a tile.
template <int kRows, typename Decoded>
SPLITSERVE_INLINE void add_steps(Vec (&sums)[kRows][kDecodedVecs], const InputRows<Decoded>& x,
                                 const Decoded* weights, int64_t steps) {
#if defined(__AVX512BF16__)
  if constexpr (kStandsForPairs<Decoded>) {
    const FloatTileStep::Mode mode;
    mode.enter(sums);
    add_each(sums, x, weights, steps);
    return mode.leave(sums);
  }
#endif
  add_each(sums, x, weights, steps);
}

// totals [kRows, 32] += x . weights, or = if they are the first ones.
template <int kRows, typename Decoded>
[[gnu::noinline]] void multiply_decoded(float* totals, const InputRows<Decoded>& x, const Decoded* weights,
                                        int64_t steps, bool is_first) {
  Vec sums[kRows][kDecodedVecs] = {};
  if (!is_first) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kDecodedVecs; ++v) sums[i][v] = load(totals + i * kPanelCols + v * kLanes);
    }
  }
  add_steps(sums, x, weights, steps);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kDecodedVecs; ++v) store(totals + i * kPanelCols + v * kLanes, sums[i][v]);
  }
}

// totals [kRows, 32] += part * scale + row_sum * offset, of each group in turn; `col` is the first output.
template <int kRows, typename Decoded>
[[gnu::noinline]] void multiply_groups(float* totals, InputRows<Decoded> x, const Decoded* weights,
                                       int64_t steps, DecodedGroups groups, int64_t col) {
  for (int64_t left = steps; left > 0; left -= groups.steps) {
    Vec sums[kRows][kDecodedVecs] = {};
    add_steps(sums, x, weights, left < groups.steps ? left : groups.steps);
#pragma GCC unroll 2
    for (int v = 0; v < kDecodedVecs; ++v) {
      const Vec scale = load(groups.scales[0][0] + col + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        float* const total = totals + i * kPanelCols + v * kLanes;
        Vec sum = fma(sums[i][v], scale, load(total));
        if (groups.row_sums != nullptr) {
          const Vec row_sum = broadcast(groups.row_sums[i * groups.row_stride]);
          sum = fma(row_sum, load(groups.scales[0][1] + col + v * kLanes), sum);
        }
        store(total, sum);
      }
    }
    x.data += groups.steps * kStepInputs<Decoded>;
    weights += groups.steps * kStepInputs<Decoded> * kPanelCols;
    ++groups.scales;
    if (groups.row_sums != nullptr) ++groups.row_sums;
  }
}

// Calls fn with `rows` as a constant, which is at most kRows.
template <int kRows = kDecodedRows, typename Fn>
SPLITSERVE_INLINE void with_rows(int64_t rows, const Fn& fn) {
  if (rows == kRows) return fn(std::integral_constant<int, kRows>{});
  if constexpr (kRows > 1) with_rows<kRows - 1>(rows, fn);
}

template <typename Format>
inline constexpr bool kIsFloat = std::is_same_v<typename Format::X, float>;
template <typename Format>
inline constexpr bool kSumsGroups =
    (is_grouped(Format::kFormat) || has_group_scales(Format::kFormat)) && !kScalesWeights<Format>;

// The weights of a stretch of a panel.
template <typename Format, typename Decoded>
class DecodedWeights {
 public:
  // Inputs [first, first + depth) of a panel, [steps, 32]. Meanwhile as many bytes are fetched from `ahead`
  // on.
  const Decoded* decode(const LinearParams& p, int64_t panel, int64_t first, int64_t depth,
                        const char* ahead) {
    const char* const packed = panel_of<Format>(p, panel);
    if constexpr (kIsFloat<Format>) {
      return reinterpret_cast<const Decoded*>(packed) + first * kPanelCols;
    } else if constexpr (kScalesWeights<Format>) {
      p.groups.has_offsets ? decode_scaled<true>(p.groups, panel, packed, first, depth, ahead)
                           : decode_scaled<false>(p.groups, panel, packed, first, depth, ahead);
    } else {
      decode_pairs(first, depth, ahead, [&](int64_t pair, int v) __attribute__((always_inline)) {
        return operand_of(packed, pair, v);
      });
    }
    return weights;
  }

 private:
  static constexpr int64_t kPairBytes = panel_bytes(Format::kFormat, kStretchInputs) / (kStretchInputs / 2);

  // weight(pair, v) is a pair of inputs of a panel in a register of outputs.
  template <typename Weight>
  SPLITSERVE_INLINE void decode_pairs(int64_t first, int64_t depth, const char* ahead, const Weight& weight) {
    each_pair(first, depth, ahead, [&](int64_t pair, Decoded* to) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVecs; ++v) store_pair(to, v, weight(pair, v));
    });
  }

  // Calls fn(pair, to) for the pairs of a stretch.
  template <typename Fn>
  SPLITSERVE_INLINE void each_pair(int64_t first, int64_t depth, const char* ahead, const Fn& fn) {
    int64_t fetched = 0;
    for (int64_t pair = 0; pair < ceil_div(depth, 2); ++pair) {
      for (; fetched < (pair + 1) * kPairBytes; fetched += 64) __builtin_prefetch(ahead + fetched);
      fn(first / 2 + pair, weights + 2 * pair * kPanelCols);
    }
  }

  template <bool kHasOffsets>
  void decode_scaled(const GroupScales& groups, int64_t panel, const char* packed, int64_t first,
                     int64_t depth, const char* ahead) {
    const char* const scales = groups.of_panel(panel);
    decode_pairs(first, depth, ahead, [&](int64_t pair, int v) __attribute__((always_inline)) {
      const float* own = groups.floats(scales, groups.of_input(2 * pair), 0);
      return scaled<Format, kHasOffsets>(operand_of(packed, pair, v), own, v);
    });
  }

  // The weights of pair `pair` of a panel, in a register of outputs.
  SPLITSERVE_INLINE static auto operand_of(const char* panel, int64_t pair, int v) {
    if constexpr (is_grouped(Format::kFormat)) {
      constexpr int64_t kPairs = kGroupDepth / 2, kBlockPairs = kBlockDepth / 2;
      const char* codes = panel + pair / kPairs * Format::kUnitBytes + Format::kScaleBytes;
      const int64_t place = pair % kPairs;
      return Format::decode(Format::load(codes + place / kBlockPairs * kBlockBytes, v),
                            static_cast<int>(place % kBlockPairs));
    } else if constexpr (has_group_scales(Format::kFormat)) {
      return Format::operand(panel + pair / kHalfPairs * Format::kHalfBytes, v,
                             static_cast<int>(pair % kHalfPairs));
    } else {
      return Format::load(panel + pair * Format::kStepBytes, v);
    }
  }

  template <typename Pair>
  SPLITSERVE_INLINE static void store_pair(Decoded* to, int v, const Pair& pair) {
#if defined(__AVX512BF16__)
    if constexpr (kStandsForPairs<Decoded>) {
      const FloatTileStep::Operand own = FloatTileStep::weights(pair);
      store(to + v * kLanes, own.second);
      return store(to + kPanelCols + v * kLanes, own.first);
    }
#endif
#if defined(SPLITSERVE_HAS_BF16_DOT)
    std::memcpy(to + 2 * v * kLanes, &pair, sizeof pair);
#else
    store(to + v * kLanes, pair.even);
    store(to + kPanelCols + v * kLanes, pair.odd);
#endif
  }

  alignas(64) Decoded weights[kIsFloat<Format> ? 1 : kStretchInputs * kPanelCols];
};

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
template <typename Format, typename Decoded>
class DecodedPanel {
 public:
  using X = typename Format::X;

  // Of rows [row, row_end), which x holds.
  void multiply(const LinearParams& p, const InputRows<Decoded>& x, int64_t row, int64_t row_end,
                const Panels& panels) {
    const int64_t rows = row_end - row, passes = ceil_div(rows, kDecodedRows);
    const char* const panel = panel_of<Format>(p, panels.current);
    if constexpr (kSumsGroups<Format>)
      std::memset(sums, 0, static_cast<size_t>(rows * kPanelCols) * sizeof(float));
    for (int64_t first = 0; first < p.depth; first += kStretchInputs) {
      const int64_t left = p.depth - first, depth = left < kStretchInputs ? left : kStretchInputs;
      const char* const ahead = left > kStretchInputs
                                    ? panel + panel_bytes(Format::kFormat, first + kStretchInputs)
                                    : panel_of<Format>(p, panels.next);
      const Decoded* own = weights.decode(p, panels.current, first, depth, ahead);
      if constexpr (kSumsGroups<Format>) load_scales(p, panels.current, first, depth);
      for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
        add(p, {row + begin, end - begin, first, depth}, x.from(begin, first), own,
            sums + begin * kPanelCols);
      }
    }
    write(p, row, rows, panels.current * kPanelCols);
  }

 private:
  static constexpr int64_t kMaxGroups = kStretchInputs / kSmallestGroup;

  // Rows of a call, and inputs of them.
  struct Pass {
    int64_t row, rows, first, depth;
  };

  static int64_t group_depth(const LinearParams& p) {
    return has_group_scales(Format::kFormat) ? p.groups.depth : kGroupDepth;
  }

  // Those of a stretch.
  void load_scales(const LinearParams& p, int64_t panel, int64_t first, int64_t depth) {
    const int64_t size = group_depth(p);
    for (int64_t group = 0; group < ceil_div(depth, size); ++group) {
      if constexpr (is_grouped(Format::kFormat)) {
        const char* const own = panel_of<Format>(p, panel) + (first / size + group) * Format::kUnitBytes;
        for (int v = 0; v < kPanelVecs; ++v) store(scales[group][0] + v * kLanes, Format::scale(own, v));
      } else {
        load_scales_beside(p.groups, p.groups.of_panel(panel), first / size + group, scales[group]);
      }
    }
  }

  static void load_scales_beside(const GroupScales& groups, const char* panel, int64_t group,
                                 float (&to)[2][kPanelCols]) {
    alignas(64) float buffers[2][kPanelCols];
    const float* const own = scales_of_group(groups, panel, group, 0, buffers[0]);
    const float* const offsets =
        groups.has_offsets ? scales_of_group(groups, panel, group, 1, buffers[1]) : own;
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec offset = Format::columns(offsets, v);
      store(to[0] + v * kLanes, Format::columns(own, v));
      store(to[1] + v * kLanes, groups.has_offsets ? offset : offset * -Format::kZero);
    }
  }

  void add(const LinearParams& p, const Pass& pass, const InputRows<Decoded>& x, const Decoded* own,
           float* total) const {
    // What lies beyond the last input of a pair is zero.
    const int64_t steps = kIsFloat<Format> ? pass.depth : ceil_div(pass.depth, 2) * 2 / kStepInputs<Decoded>;
    for (int64_t col = 0; col < kPanelCols; col += kDecodedCols) {
      with_rows(pass.rows, [&](auto num_rows) {
        if constexpr (kSumsGroups<Format>) {
          multiply_groups<num_rows>(total + col, x, own + col * kStepInputs<Decoded>, steps,
                                    groups_of(p, pass), col);
        } else {
          multiply_decoded<num_rows>(total + col, x, own + col * kStepInputs<Decoded>, steps,
                                     pass.first == 0);
        }
      });
    }
  }

  DecodedGroups groups_of(const LinearParams& p, const Pass& pass) const {
    const int64_t size = group_depth(p);
    const float* row_sums = p.groups.row_sums;
    if (row_sums != nullptr) row_sums += pass.row * p.groups.count + pass.first / size;
    return {scales, row_sums, p.groups.count, size / kStepInputs<Decoded>};
  }

  void write(const LinearParams& p, int64_t row, int64_t rows, int64_t col) {
    if constexpr (requires(Vec(&own)[kPanelVecs]) { Format::put_in_order(own); }) {
      for (int64_t i = 0; i < rows; ++i) {
        Vec own[kPanelVecs];
        std::memcpy(own, sums + i * kPanelCols, sizeof own);
        Format::put_in_order(own);
        std::memcpy(sums + i * kPanelCols, own, sizeof own);
      }
    }
    if constexpr (kIsFloat<Format>) {
      write_columns<X>(p, row, rows, col, sums);
    } else {
      write_panel(p, row, rows, col, sums);
    }
  }

  DecodedWeights<Format, Decoded> weights;
  alignas(64) float scales[kMaxGroups][2][kPanelCols];
  alignas(64) float sums[kDecodedBlockRows * kPanelCols];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
