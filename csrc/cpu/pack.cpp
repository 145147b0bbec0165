// Packing: elements of a weight matrix into their places in the panels.
#include <algorithm>

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

void pack_weight(TensorView packed, TensorView source, int64_t cols, int64_t depth, int64_t first_col,
                 int64_t first_k) {
  const DType dtype = packed_arg(packed, cols, depth);
  cpu_arg(source, "source").activation(dtype).rank(2);
  SPLITSERVE_CHECK_VALUE(first_col >= 0 && first_col + source.size(0) <= cols,
                         "source: its rows do not fit a weight of " << cols << " from row " << first_col);
  SPLITSERVE_CHECK_VALUE(
      first_k >= 0 && first_k + source.size(1) <= depth,
      "source: its columns do not fit a weight of " << depth << " from column " << first_k);
  if (source.size(0) == 0) return;
  const PackedLayout layout(dtype, depth);
  if (dtype == DType::kFloat32) {
    pack<uint32_t>(packed, source, layout, first_col, first_k);
  } else {
    pack<uint16_t>(packed, source, layout, first_col, first_k);
  }
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(pack_weight, splitserve::pack_weight);
