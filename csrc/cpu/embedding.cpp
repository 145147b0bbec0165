// Embedding lookup: collects one row of a packed weight per token.
#include "cpu/packed_arg.h"
#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve {
namespace {

// Row `row` of a packed weight, scattered over its panel: one pair per step. Few rows are looked up, and a
// tied output head then needs no weight of its own.
template <typename Element>
struct PackedRow {
  const Element* first;
  int64_t pair;

  PackedRow(const void* packed, const PackedLayout& layout, int64_t row)
      : first(static_cast<const Element*>(packed) + layout.offset(row, 0)), pair(layout.pair) {}
  Element operator[](int64_t k) const { return first[k / pair * kPanelCols * pair + k % pair]; }
};

template <typename Element>
void copy_row(Element* out, const PackedRow<Element>& row, int64_t size) {
  for (int64_t k = 0; k < size; ++k) out[k] = row[k];
}

// bfloat16(code * scale)
void scale_row(BFloat16* out, const PackedRow<int8_t>& row, float scale, int64_t size) {
  for (int64_t k = 0; k < size; ++k) host::store_partial(out + k, host::Vec{} + scale * row[k], 1);
}

void embedding(TensorView out, TensorView token_ids, TensorView weight, Optional<TensorView> scales,
               int64_t vocab, int64_t hidden) {
  const WeightFormat format = packed_arg(weight, vocab, hidden);
  SPLITSERVE_CHECK_VALUE(format != WeightFormat::kInt4, "packed: rows of int4 weights cannot be looked up");
  const float* scale = scales_arg(scales, format, vocab);
  cpu_arg(out, "out").activation(activation_of(format)).rank(2).size(1, hidden).rows_contiguous();
  const int64_t tokens = out.size(0);
  const IndexArray ids = cpu_arg(token_ids, "token_ids").indices(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    SPLITSERVE_CHECK_VALUE(ids[t] >= 0 && ids[t] < vocab,
                           "token_ids: " << ids[t] << " is outside the vocabulary of " << vocab);
  }
  const PackedLayout layout(format, hidden);
  const void* packed = weight.data_ptr();
  host::parallel_for(tokens, tokens * hidden, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      void* row = static_cast<char*>(out.data_ptr()) + t * out.stride(0) * dtype_bytes(activation_of(format));
      if (format == WeightFormat::kInt8) {
        scale_row(static_cast<BFloat16*>(row), {packed, layout, ids[t]}, scale[ids[t]], hidden);
      } else if (format == WeightFormat::kBFloat16) {
        copy_row<uint16_t>(static_cast<uint16_t*>(row), {packed, layout, ids[t]}, hidden);
      } else {
        copy_row<uint32_t>(static_cast<uint32_t*>(row), {packed, layout, ids[t]}, hidden);
      }
    }
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(embedding, splitserve::embedding);
