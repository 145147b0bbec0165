// Checks and binding of embedding.
#include "common/device_args.h"

namespace splitserve {
namespace {

void embedding(TensorView out, TensorView token_ids, TensorView weight) {
  const DeviceArgs args(out, "out");
  EmbeddingParams params{};
  params.dtype = args(weight, "weight").rank(2).rows_contiguous().activation();
  params.vocab = weight.size(0);
  params.hidden = weight.size(1);
  args(out, "out").activation(params.dtype).rank(2).size(1, params.hidden).rows_contiguous();
  params.tokens = out.size(0);
  params.token_ids = args(token_ids, "token_ids").indices(params.tokens);
  params.out = out.data_ptr();
  params.weight = weight.data_ptr();
  params.out_stride = out.stride(0);
  params.weight_stride = weight.stride(0);
  SPLITSERVE_RUN(embedding, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(embedding, splitserve::embedding);
