// Blocks of rows against panels of a linear layer on processors that multiply no bfloat16: weights become
// floats once for all rows of a block, a stretch of inputs at a time, and so do the rows.
//
// Every lane of the sums walks the inputs from their start, in groups if they are scaled in groups, as in
// panel_tile.h: the bits are the same.
#pragma once

#include <type_traits>

#include "cpu/linear_rows.h"

#if !defined(__AVX512BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Inputs of a stretch: whole groups, whose weights stay in the L1 cache.
inline constexpr int64_t kFloatStretch = 256;
static_assert(kFloatStretch % kLargestGroup == 0);
inline constexpr int64_t kFloatBlockRows = 256;
// Rows and registers of outputs whose sums stay in registers.
inline constexpr int kFloatRows = kLanes == 16 ? 12 : 6, kFloatVecs = 2;
inline constexpr int64_t kFloatCols = kFloatVecs * kLanes;

// Rows of floats, and how far they are apart.
struct FloatRows {
  const float* data;
  int64_t stride;
};

// sums [kRows, 32] = or += x . weights [depth, 32], of kFloatCols outputs.
template <int kRows, bool kFromZero>
[[gnu::noinline]] void multiply_floats(float* sums, const FloatRows& x, const float* weights, int64_t depth) {
  Vec own[kRows][kFloatVecs] = {};
  if constexpr (!kFromZero) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kFloatVecs; ++v) own[i][v] = load(sums + i * kPanelCols + v * kLanes);
    }
  }
  for (int64_t k = 0; k < depth; ++k, weights += kPanelCols) {
    const Vec first = load(weights), second = load(weights + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec input = broadcast(x.data[i * x.stride + k]);
      own[i][0] = fma(input, first, own[i][0]);
      own[i][1] = fma(input, second, own[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kFloatVecs; ++v) store(sums + i * kPanelCols + v * kLanes, own[i][v]);
  }
}

template <bool kFromZero, int kRows = kFloatRows>
void multiply_rows(int64_t rows, float* sums, const FloatRows& x, const float* weights, int64_t depth) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_rows<kFromZero, kRows - 1>(rows, sums, x, weights, depth);
  }
  for (int64_t col = 0; col < kPanelCols; col += kFloatCols)
    multiply_floats<kRows, kFromZero>(sums + col, x, weights + col, depth);
}

// The weights of pair `pair` of a panel, in registers of outputs.
template <typename Format>
SPLITSERVE_INLINE auto operand_of(const char* panel, int64_t pair, int v) {
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

template <typename Format>
inline constexpr bool kIsFloat = std::is_same_v<typename Format::X, float>;
template <typename Format>
inline constexpr bool kHasGroups = is_grouped(Format::kFormat) || has_group_scales(Format::kFormat);

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
template <typename Format>
class FloatPanel {
 public:
  using X = typename Format::X;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, int64_t panel) {
    const int64_t rows = row_end - row, passes = ceil_div(rows, kFloatRows);
    for (int64_t first = 0; first < p.depth; first += kFloatStretch) {
      const int64_t depth = p.depth - first < kFloatStretch ? p.depth - first : kFloatStretch;
      const float* own = unpack(p, panel, first, depth);
      if constexpr (kHasGroups<Format>) load_scales(p, panel, first, depth);
      for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
        add(p, {row + begin, end - begin, first, depth}, own, sums + begin * kPanelCols);
      }
    }
    write(p, row, rows, panel * kPanelCols);
  }

 private:
  static constexpr int64_t kMaxGroups = kFloatStretch / kSmallestGroup;

  // Rows of x, and inputs of them.
  struct Pass {
    int64_t row, rows, first, depth;
  };

  static int64_t group_depth(const LinearParams& p) {
    return has_group_scales(Format::kFormat) ? p.groups.depth : kGroupDepth;
  }

  // The weights of a stretch as floats, [depth, 32].
  const float* unpack(const LinearParams& p, int64_t panel, int64_t first, int64_t depth) {
    const char* packed = panel_of<Format>(p, panel);
    if constexpr (kIsFloat<Format>) {
      return reinterpret_cast<const float*>(packed) + first * kPanelCols;
    } else {
      for (int64_t pair = 0; pair < ceil_div(depth, 2); ++pair) {
        float* const to = weights + 2 * pair * kPanelCols;
#pragma GCC unroll 8
        for (int v = 0; v < kPanelVecs; ++v) {
          const auto operand = operand_of<Format>(packed, first / 2 + pair, v);
          store(to + v * kLanes, operand.even);
          store(to + kPanelCols + v * kLanes, operand.odd);
        }
      }
      return weights;
    }
  }

  void load_scales(const LinearParams& p, int64_t panel, int64_t first, int64_t depth) {
    const int64_t size = group_depth(p);
    for (int64_t group = 0; group < ceil_div(depth, size); ++group) {
      for (int v = 0; v < kPanelVecs; ++v) {
        float* const to = scales[group][0] + v * kLanes;
        if constexpr (is_grouped(Format::kFormat)) {
          store(to,
                Format::scale(panel_of<Format>(p, panel) + (first / size + group) * Format::kUnitBytes, v));
        } else {
          const float* own = p.groups.of_panel(panel) + (first / size + group) * p.groups.stride();
          const Vec scale = Format::columns(own, v);
          store(to, scale);
          store(scales[group][1] + v * kLanes,
                p.groups.has_offsets ? Format::columns(own + kPanelCols, v) : scale * -Format::kZero);
        }
      }
    }
  }

  void add(const LinearParams& p, const Pass& pass, const float* own, float* total) {
    const FloatRows x = floats_of(p, pass);
    // What lies beyond the last input of a pair is zero.
    const int64_t depth = kIsFloat<Format> ? pass.depth : ceil_div(pass.depth, 2) * 2;
    if constexpr (!kHasGroups<Format>) {
      pass.first == 0 ? multiply_rows<true>(pass.rows, total, x, own, depth)
                      : multiply_rows<false>(pass.rows, total, x, own, depth);
    } else {
      const int64_t size = group_depth(p);
      if (pass.first == 0) std::memset(total, 0, static_cast<size_t>(pass.rows * kPanelCols) * sizeof(float));
      for (int64_t group = 0, k = 0; k < depth; ++group, k += size) {
        const FloatRows x_of_group{x.data + k, x.stride};
        multiply_rows<true>(pass.rows, part, x_of_group, own + k * kPanelCols,
                            depth - k < size ? depth - k : size);
        add_scaled(p, pass, group, pass.first / size + group, total);
      }
    }
  }

  // The inputs of a pass as floats, with a zero behind the last one.
  FloatRows floats_of(const LinearParams& p, const Pass& pass) {
    const X* x = static_cast<const X*>(p.x) + pass.row * p.x_stride + pass.first;
    if constexpr (kIsFloat<Format>) {
      return {x, p.x_stride};
    } else {
      for (int64_t i = 0; i < pass.rows; ++i) {
        float* const to = inputs + i * kFloatStretch;
        for (int64_t k = 0; k < pass.depth; k += kLanes)
          store(to + k, load_up_to(x + i * p.x_stride + k, pass.depth - k));
      }
      return {inputs, kFloatStretch};
    }
  }

  // total += part * scale + row_sum * offset, of one group.
  void add_scaled(const LinearParams& p, const Pass& pass, int64_t place, int64_t group, float* total) const {
    for (int64_t i = 0; i < pass.rows; ++i, total += kPanelCols) {
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVecs; ++v) {
        const float* sum = part + i * kPanelCols + v * kLanes;
        Vec own = fma(load(sum), load(scales[place][0] + v * kLanes), load(total + v * kLanes));
        if (p.groups.row_sums != nullptr) {
          const float row_sum = p.groups.row_sums[(pass.row + i) * p.groups.count + group];
          own = fma(broadcast(row_sum), load(scales[place][1] + v * kLanes), own);
        }
        store(total + v * kLanes, own);
      }
    }
  }

  void write(const LinearParams& p, int64_t row, int64_t rows, int64_t col) const {
    if constexpr (!kIsFloat<Format>) {
      if (col + kPanelCols <= p.cols) {
        return p.out_dtype == DType::kFloat32 ? write_rows<float>(p, row, rows, col, sums)
                                              : write_rows<BFloat16>(p, row, rows, col, sums);
      }
    }
    write_columns<X>(p, row, rows, col, sums);
  }

  alignas(64) float weights[kIsFloat<Format> ? 1 : kFloatStretch * kPanelCols];
  alignas(64) float inputs[kFloatRows * kFloatStretch];
  alignas(64) float scales[kMaxGroups][2][kPanelCols];
  alignas(64) float part[kFloatRows * kPanelCols];
  alignas(64) float sums[kFloatBlockRows * kPanelCols];
};

template <typename Format>
  requires(Format::kFormat != WeightFormat::kInt8Dot)
struct BlockRows<Format> {
  static constexpr int64_t kLeastRows = 4 * kFloatRows, kMostRows = kFloatBlockRows, kBytes = kRowBlockBytes;
  // Weights that are read or converted a few times cost less than a way through memory.
  static constexpr bool kIsPlain = kIsFloat<Format> || Format::kFormat == WeightFormat::kBFloat16;
  static constexpr int64_t kFewRows = (kIsPlain ? 4 : 2) * Format::kMaxRows;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    if (row_end - row <= kFewRows) return panel_rows<Format>(p, row, row_end, panels);
    floats.multiply(p, row, row_end, panels.current);
  }

 private:
  FloatPanel<Format> floats;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
