// Embedding lookup: copies one weight row per token.
#include <cstring>

#include "common/check.h"
#include "cpu/parallel.h"

namespace splitserve {
namespace {

void embedding(TensorView out, TensorView token_ids, TensorView weight) {
  const DType dtype = cpu_arg(weight, "weight").rank(2).rows_contiguous().activation();
  const int64_t vocab = weight.size(0), hidden = weight.size(1);
  cpu_arg(out, "out").activation(dtype).rank(2).size(1, hidden).rows_contiguous();
  const int64_t tokens = out.size(0);
  const IndexArray ids = cpu_arg(token_ids, "token_ids").indices(tokens);
  const int64_t element = dtype_bytes(dtype);
  for (int64_t t = 0; t < tokens; ++t) {
    SPLITSERVE_CHECK_VALUE(ids[t] >= 0 && ids[t] < vocab,
                           "token_ids: " << ids[t] << " is outside the vocabulary of " << vocab);
  }
  host::parallel_for(tokens, tokens * hidden, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(static_cast<char*>(out.data_ptr()) + t * out.stride(0) * element,
                  static_cast<const char*>(weight.data_ptr()) + ids[t] * weight.stride(0) * element,
                  static_cast<size_t>(hidden * element));
    }
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(embedding, splitserve::embedding);
