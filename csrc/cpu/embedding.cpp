// Embedding lookup: collects one row of a packed weight per token. A rank that holds some rows of the
// vocabulary writes zeros for the tokens of the others.
#include <cstring>

#include "cpu/packed_arg.h"
#include "cpu/parallel.h"
#include "cpu/program.h"
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

struct EmbeddingParams {
  void* out;            // [tokens, hidden]
  const void* weight;   // packed, see packed.h
  const float* scales;  // [vocab] for int8, else nullptr
  IndexArray ids;       // [tokens]
  int64_t out_stride, tokens, hidden;
  int64_t first, rows, vocab;  // the weight holds rows [first, first + rows) of the vocabulary
  WeightFormat format;
};

void check_ids(const EmbeddingParams& p) {
  for (int64_t t = 0; t < p.tokens; ++t) {
    SPLITSERVE_CHECK_VALUE(p.ids[t] >= 0 && p.ids[t] < p.vocab,
                           "token_ids: " << p.ids[t] << " is outside the vocabulary of " << p.vocab);
  }
}

void look_up(const EmbeddingParams& p) {
  const PackedLayout layout(p.format, p.hidden);
  const int64_t row_bytes = p.out_stride * dtype_bytes(activation_of(p.format));
  host::parallel_for(p.tokens, p.tokens * p.hidden, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      void* row = static_cast<char*>(p.out) + t * row_bytes;
      const int64_t id = p.ids[t] - p.first;
      if (id < 0 || id >= p.rows) {
        std::memset(row, 0, static_cast<size_t>(p.hidden * dtype_bytes(activation_of(p.format))));
      } else if (p.format == WeightFormat::kInt8) {
        scale_row(static_cast<BFloat16*>(row), {p.weight, layout, id}, p.scales[id], p.hidden);
      } else if (p.format == WeightFormat::kBFloat16) {
        copy_row<uint16_t>(static_cast<uint16_t*>(row), {p.weight, layout, id}, p.hidden);
      } else {
        copy_row<uint32_t>(static_cast<uint32_t*>(row), {p.weight, layout, id}, p.hidden);
      }
    }
  });
}

void embedding(TensorView out, TensorView token_ids, TensorView weight, Optional<TensorView> scales,
               int64_t rows, int64_t hidden, int64_t first, int64_t vocab) {
  EmbeddingParams params{};
  params.format = packed_arg(weight, rows, hidden);
  SPLITSERVE_CHECK_VALUE(first >= 0 && first <= vocab - rows, "first: rows "
                                                                  << first << " to " << first + rows
                                                                  << " are not all within " << vocab);
  SPLITSERVE_CHECK_VALUE(!is_grouped(params.format), "packed: rows of weights in groups cannot be looked up");
  params.scales = scales_arg(scales, params.format, rows);
  cpu_arg(out, "out").activation(activation_of(params.format)).rank(2).size(1, hidden).rows_contiguous();
  params.tokens = out.size(0);
  params.ids = cpu_arg(token_ids, "token_ids").indices(params.tokens);
  params.out = out.data_ptr();
  params.weight = weight.data_ptr();
  params.out_stride = out.stride(0);
  params.first = first;
  params.rows = rows;
  params.vocab = vocab;
  params.hidden = hidden;
  run_kernel(params, [](const EmbeddingParams& p) {
    check_ids(p);
    look_up(p);
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(embedding, splitserve::embedding);
