// Embedding lookup: collects one row of a packed weight per token.
#include "cpu/packed_arg.h"
#include "cpu/parallel.h"

namespace splitserve {
namespace {

// A row is scattered over its panel, one pair per step; few rows are looked up, and a tied output head then
// needs no weight of its own.
template <typename Element>
void unpack_row(Element* out, const Element* packed, const PackedLayout& layout, int64_t row, int64_t depth) {
  const Element* first = packed + layout.offset(row, 0);
  for (int64_t k = 0; k < depth; ++k) {
    out[k] = first[k / layout.pair * kPanelCols * layout.pair + k % layout.pair];
  }
}

template <typename Element>
void look_up(const TensorView& out, const IndexArray& ids, const TensorView& weight,
             const PackedLayout& layout) {
  const int64_t depth = out.size(1);
  host::parallel_for(out.size(0), out.size(0) * depth, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      unpack_row(static_cast<Element*>(out.data_ptr()) + t * out.stride(0),
                 static_cast<const Element*>(weight.data_ptr()), layout, ids[t], depth);
    }
  });
}

void embedding(TensorView out, TensorView token_ids, TensorView weight, int64_t vocab, int64_t hidden) {
  const DType dtype = packed_arg(weight, vocab, hidden);
  cpu_arg(out, "out").activation(dtype).rank(2).size(1, hidden).rows_contiguous();
  const int64_t tokens = out.size(0);
  const IndexArray ids = cpu_arg(token_ids, "token_ids").indices(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    SPLITSERVE_CHECK_VALUE(ids[t] >= 0 && ids[t] < vocab,
                           "token_ids: " << ids[t] << " is outside the vocabulary of " << vocab);
  }
  const PackedLayout layout(dtype, hidden);
  dtype == DType::kFloat32 ? look_up<uint32_t>(out, ids, weight, layout)
                           : look_up<uint16_t>(out, ids, weight, layout);
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(embedding, splitserve::embedding);
