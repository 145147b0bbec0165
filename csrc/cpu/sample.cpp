// Checks and binding of sample.
#include "cpu/sample.h"

#include "common/check.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

void sample(TensorView out_token_ids, TensorView logits, TensorView temperature, TensorView top_k,
            TensorView top_p, TensorView min_p, TensorView seeds, TensorView positions) {
  cpu_arg(logits, "logits").rank(2).type({kFloat32Type}).rows_contiguous();
  SampleParams params{};
  params.rows = logits.size(0);
  params.vocab = logits.size(1);
  SPLITSERVE_CHECK_VALUE(params.vocab > 0 && params.vocab < INT32_MAX, "logits: unsupported vocabulary size");
  params.logits = static_cast<const float*>(logits.data_ptr());
  params.logits_stride = logits.stride(0);
  params.out_token_ids =
      cpu_arg(out_token_ids, "out_token_ids").vector(kInt32Type, params.rows).data<int32_t>();
  params.temperature = cpu_arg(temperature, "temperature").vector(kFloat32Type, params.rows).data<float>();
  params.top_k = cpu_arg(top_k, "top_k").vector(kInt32Type, params.rows).data<int32_t>();
  params.top_p = cpu_arg(top_p, "top_p").vector(kFloat32Type, params.rows).data<float>();
  params.min_p = cpu_arg(min_p, "min_p").vector(kFloat32Type, params.rows).data<float>();
  params.seeds = cpu_arg(seeds, "seeds").vector(kInt64Type, params.rows).data<int64_t>();
  params.positions = cpu_arg(positions, "positions").indices(params.rows);
  SPLITSERVE_RUN_F32(sample, params);
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(sample, splitserve::sample);
