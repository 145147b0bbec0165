// Embedding lookup: collects one row of a packed weight per token. A rank that holds some rows of the
// vocabulary writes zeros for the tokens of the others.
#include <algorithm>
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

// A pair at a time.
template <typename Element>
void copy_row(Element* out, const PackedRow<Element>& row, int64_t size) {
  constexpr int64_t kPair = 4 / sizeof(Element);
  int64_t k = 0;
  for (; k + kPair <= size; k += kPair) std::memcpy(out + k, row.first + k * kPanelCols, 4);
  for (; k < size; ++k) out[k] = row[k];
}

// bfloat16(code * scale)
void scale_row(BFloat16* out, const PackedRow<int8_t>& row, float scale, int64_t size) {
  for (int64_t k = 0; k < size; ++k) host::store_partial(out + k, host::Vec{} + scale * row[k], 1);
}

// The code at k of row `row`, as a number.
struct GroupCodes {
  const char* panel;  // of the row
  int64_t col;
  WeightFormat format;

  GroupCodes(const void* packed, WeightFormat kind, int64_t depth, int64_t row)
      : panel(static_cast<const char*>(packed) + row / kPanelCols * panel_bytes(kind, depth)),
        col(row % kPanelCols),
        format(kind) {}
  float operator[](int64_t k) const {
    if (format == WeightFormat::kInt8Groups) {
      return static_cast<int8_t>(panel[(k / 2 * kPanelCols + col) * 2 + k % 2]);
    }
    if (format == WeightFormat::kFp8Groups) {
      const uint32_t code = static_cast<uint8_t>(panel[(k / 2 * kPanelCols + col) * 2 + k % 2]);
      return host::as_float(host::UintVec{} + ((code & 127u) << 20 | (code & 128u) << 24))[0] * 0x1p120f;
    }
    if (format == WeightFormat::kInt4Groups)
      return static_cast<float>(nibble(panel + k / kBlockDepth * kBlockBytes, k));
    const char* const half = panel + k / kHalfDepth * kInt6HalfBytes;
    const uint32_t upper = word(half + kInt6UpperOffset) >> int6_shift(k % kHalfDepth) & 3;
    return static_cast<float>(nibble(half + k % kHalfDepth / kBlockDepth * kBlockBytes, k) | upper << 4);
  }

 private:
  uint32_t word(const char* block) const {
    uint32_t own;
    std::memcpy(&own, block + col * 4, sizeof own);
    return own;
  }
  uint32_t nibble(const char* block, int64_t k) const {
    const int64_t i = k % kBlockDepth;
    return word(block) >> (i % 2 * 16 + i / 2 * 4) & 15;
  }
};

// What codes are too large by.
float zero_of(WeightFormat format, const GroupScales& groups) {
  if (groups.has_offsets) return 0;
  return format == WeightFormat::kInt4Groups   ? kInt4Zero
         : format == WeightFormat::kInt6Groups ? kInt6Zero
                                               : 0;
}

// A scale or offset of an output of a panel.
float scale_of(const GroupScales& groups, const char* panel, int64_t group, int64_t kind, int64_t col) {
  if (!groups.are_bytes) return groups.floats(panel, group, kind)[col];
  const char* const unit = groups.unit(panel, group, kind);
  return reinterpret_cast<const float*>(unit)[col] * groups.bytes(unit, group)[col];
}

// bfloat16(code * scale + offset)
void scale_groups(BFloat16* out, const GroupCodes& codes, const GroupScales& groups, int64_t row,
                  int64_t size) {
  const char* const panel = groups.of_panel(row / kPanelCols);
  const int64_t col = row % kPanelCols;
  const float zero = zero_of(codes.format, groups);
  for (int64_t k = 0; k < size; k += host::kLanes) {
    // Lanes never belong to two groups.
    const int64_t group = groups.of_input(k);
    const float scale = scale_of(groups, panel, group, 0, col);
    const int64_t count = std::min<int64_t>(host::kLanes, size - k);
    float values[host::kLanes] = {};
    for (int64_t i = 0; i < count; ++i) values[i] = (codes[k + i] - zero) * scale;
    host::Vec numbers = host::load(values);
    if (groups.has_offsets) numbers += host::Vec{} + scale_of(groups, panel, group, 1, col);
    host::store_up_to(out + k, numbers, count);
  }
}

struct EmbeddingParams {
  void* out;            // [tokens, hidden]
  const void* weight;   // packed, see packed.h
  const float* scales;  // [vocab] for int8, else nullptr
  GroupScales groups;   // of codes in groups
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
      } else if (has_group_scales(p.format)) {
        const GroupCodes codes(p.weight, p.format, p.hidden, id);
        scale_groups(static_cast<BFloat16*>(row), codes, p.groups, id, p.hidden);
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
  const ScaledWeight scaled = scaled_arg(weight, scales, rows, hidden);
  params.format = scaled.format;
  params.scales = scaled.scales;
  params.groups = scaled.groups;
  SPLITSERVE_CHECK_VALUE(first >= 0 && first <= vocab - rows, "first: rows "
                                                                  << first << " to " << first + rows
                                                                  << " are not all within " << vocab);
  SPLITSERVE_CHECK_VALUE(!is_grouped(params.format),
                         "packed: rows of weights with scales between them cannot be looked up");
  SPLITSERVE_CHECK_VALUE(params.format != WeightFormat::kInt8Dot,
                         "packed: rows of weights for int8 activations cannot be looked up");
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

SPLITSERVE_EXPORT(embedding, splitserve::embedding);
