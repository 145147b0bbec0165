// Packing: elements of a weight matrix into their places in the panels.
#include <algorithm>
#include <cstring>

#include "common/bfloat16.h"
#include "cpu/packed_arg.h"
#include "cpu/parallel.h"

namespace splitserve {
namespace {

// A rectangle of a weight matrix whose first element belongs at (first_col, first_k) of the packed weight.
template <typename Element>
struct Source {
  const Element* data;
  int64_t cols, depth;
  int64_t col_stride, k_stride;
  int64_t first_col, first_k;
};

// The columns of `source` that belong to one panel.
template <typename Element>
void pack_panel(Element* packed, const Source<Element>& source, const PackedLayout& layout, int64_t panel) {
  const int64_t begin = std::max(source.first_col, panel * kPanelCols);
  const int64_t end = std::min(source.first_col + source.cols, (panel + 1) * kPanelCols);
  for (int64_t k = 0; k < source.depth; ++k) {
    Element* out = packed + layout.offset(begin, source.first_k + k);
    const Element* in = source.data + (begin - source.first_col) * source.col_stride + k * source.k_stride;
    for (int64_t i = 0; i < end - begin; ++i) out[i * layout.pair] = in[i * source.col_stride];
  }
}

template <typename Element>
void pack(const TensorView& packed, const TensorView& source, const PackedLayout& layout, int64_t first_col,
          int64_t first_k) {
  const Source<Element> part{static_cast<const Element*>(source.data_ptr()),
                             source.size(0),
                             source.size(1),
                             source.stride(0),
                             source.stride(1),
                             first_col,
                             first_k};
  const int64_t first_panel = first_col / kPanelCols;
  const int64_t panels = ceil_div(first_col + part.cols, kPanelCols) - first_panel;
  host::parallel_for(panels, part.cols * part.depth, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      pack_panel(static_cast<Element*>(packed.data_ptr()), part, layout, first_panel + i);
    }
  });
}

void check_place(const TensorView& source, int64_t cols, int64_t depth, int64_t first_col, int64_t first_k) {
  SPLITSERVE_CHECK_VALUE(first_col >= 0 && first_col + source.size(0) <= cols,
                         "source: its rows do not fit a weight of " << cols << " from row " << first_col);
  SPLITSERVE_CHECK_VALUE(
      first_k >= 0 && first_k + source.size(1) <= depth,
      "source: its columns do not fit a weight of " << depth << " from column " << first_k);
}

void pack_weight(TensorView packed, TensorView source, int64_t cols, int64_t depth, int64_t first_col,
                 int64_t first_k) {
  const WeightFormat format = packed_arg(packed, cols, depth);
  SPLITSERVE_CHECK_VALUE(!has_code_units(format), "packed: pack_codes packs codes of 4 and 6 bits");
  cpu_arg(source, "source").rank(2).type({packed.dtype()});
  check_place(source, cols, depth, first_col, first_k);
  if (source.size(0) == 0) return;
  const PackedLayout layout(format, depth);
  switch (format) {
    case WeightFormat::kFloat32:
      return pack<uint32_t>(packed, source, layout, first_col, first_k);
    case WeightFormat::kBFloat16:
      return pack<uint16_t>(packed, source, layout, first_col, first_k);
    default:
      return pack<uint8_t>(packed, source, layout, first_col, first_k);
  }
}

// The lower 4 bits of the codes of a block.
uint32_t nibbles_of(const int8_t* codes, int64_t count) {
  uint32_t nibbles = 0;
  for (int64_t i = 0; i < std::min(count, kBlockDepth); ++i)
    nibbles |= (static_cast<uint32_t>(codes[i]) & 15) << (i % 2 * 16 + i / 2 * 4);
  return nibbles;
}

// The groups of one output: codes [depth], of which the lower 4 bits count, scales [groups] of kScaleSize
// bytes each.
template <int64_t kScaleSize>
void pack_groups(char* panel, int64_t col, const int8_t* codes, const char* scales, int64_t depth) {
  constexpr int64_t kScaleBytes = kPanelCols * kScaleSize;
  for (int64_t group = 0; group * kGroupDepth < depth; ++group) {
    char* start = panel + group * (kScaleBytes + kGroupCodeBytes);
    if constexpr (kScaleSize > 0) {
      std::memcpy(start + col * kScaleSize, scales + group * kScaleSize, kScaleSize);
    }
    for (int64_t block = 0; block < kGroupDepth / kBlockDepth; ++block) {
      const int64_t k = group * kGroupDepth + block * kBlockDepth;
      const uint32_t nibbles = nibbles_of(codes + k, depth - k);
      std::memcpy(start + kScaleBytes + block * kBlockBytes + col * 4, &nibbles, sizeof nibbles);
    }
  }
}

// The halves of one output: codes [depth] of 6 bits.
void pack_halves(char* panel, int64_t col, const int8_t* codes, int64_t depth) {
  for (int64_t k = 0; k < depth; k += kHalfDepth) {
    char* const half = panel + k / kHalfDepth * kInt6HalfBytes;
    uint32_t upper = 0;
    for (int64_t block = 0; block < kHalfDepth / kBlockDepth; ++block) {
      const int64_t first = k + block * kBlockDepth, left = depth - first;
      const uint32_t nibbles = nibbles_of(codes + first, left);
      std::memcpy(half + block * kBlockBytes + col * 4, &nibbles, sizeof nibbles);
      for (int64_t i = 0; i < std::min(left, kBlockDepth); ++i)
        upper |= (static_cast<uint32_t>(codes[first + i]) >> 4 & 3) << int6_shift(block * kBlockDepth + i);
    }
    std::memcpy(half + kInt6UpperOffset + col * 4, &upper, sizeof upper);
  }
}

// Calls fn(panel, col, row) for the panel of every row of codes, and its place there.
template <typename Fn>
void for_rows(const TensorView& packed, const TensorView& source, WeightFormat format, int64_t first_col,
              const Fn& fn) {
  const int64_t rows = source.size(0), depth = source.size(1);
  host::parallel_for(rows, rows * depth, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t col = first_col + row;
      fn(static_cast<char*>(packed.data_ptr()) + col / kPanelCols * panel_bytes(format, depth),
         col % kPanelCols, row);
    }
  });
}

template <int64_t kScaleSize>
void pack_rows(const TensorView& packed, const TensorView& source, const Optional<TensorView>& scales,
               WeightFormat format, int64_t first_col) {
  const char* first = nullptr;
  int64_t stride = 0;
  if constexpr (kScaleSize > 0) {
    const TensorView view = *scales;
    first = static_cast<const char*>(view.data_ptr()), stride = view.stride(0) * kScaleSize;
  }
  for_rows(packed, source, format, first_col, [&](char* panel, int64_t col, int64_t row) {
    const int8_t* codes = static_cast<const int8_t*>(source.data_ptr()) + row * source.stride(0);
    if constexpr (kScaleSize == 0) {
      if (format == WeightFormat::kInt6Groups) return pack_halves(panel, col, codes, source.size(1));
    }
    pack_groups<kScaleSize>(panel, col, codes, first + row * stride, source.size(1));
  });
}

// Codes of 4 and 6 bits, with scales if these lie between them.
void pack_codes(TensorView packed, TensorView source, Optional<TensorView> scales, int64_t cols,
                int64_t depth, int64_t first_col) {
  const WeightFormat format = packed_arg(packed, cols, depth);
  const bool has_scales_beside = has_group_scales(format);
  SPLITSERVE_CHECK_VALUE(has_code_units(format), "packed: expected codes of 4 or 6 bits");
  SPLITSERVE_CHECK_VALUE(scales.has_value() != has_scales_beside, "scales: belong between codes");
  cpu_arg(source, "source").rank(2).type({kInt8Type}).size(1, depth).rows_contiguous();
  check_place(source, cols, depth, first_col, 0);
  if (has_scales_beside) return pack_rows<0>(packed, source, scales, format, first_col);
  const bool is_int4 = format == WeightFormat::kInt4;
  const TensorView view = *scales;
  cpu_arg(view, "scales").rank(2).type({is_int4 ? kBFloat16Type : kUint8Type}).rows_contiguous();
  cpu_arg(view, "scales").size(0, source.size(0)).size(1, ceil_div(depth, kGroupDepth));
  is_int4 ? pack_rows<2>(packed, source, scales, format, first_col)
          : pack_rows<1>(packed, source, scales, format, first_col);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(pack_weight, splitserve::pack_weight);
SPLITSERVE_EXPORT(pack_codes, splitserve::pack_codes);
