// Checks and binding of sample.
#include "cpu/sample.h"

#include "common/device_args.h"
#include "common/logit_rules.h"

namespace splitserve {
namespace {

void set_masks(SampleParams* p, const Optional<TensorView>& masks, const Optional<TensorView>& mask_rows) {
  SPLITSERVE_CHECK_VALUE(masks.has_value() == mask_rows.has_value(),
                         "mask_rows: given if and only if masks is");
  if (!masks.has_value()) return;
  const TensorView table = *masks, rows = *mask_rows;
  cpu_arg(table, "masks").rank(2).type({kInt32Type}).size(1, mask_words(p->vocab)).rows_contiguous();
  p->masks = static_cast<const uint32_t*>(table.data_ptr());
  p->masks_stride = table.stride(0);
  p->num_masks = table.size(0);
  p->mask_rows = cpu_arg(rows, "mask_rows").vector(kInt32Type, p->rows).data<int32_t>();
}

void check_masks(const SampleParams& p) {
  for (int64_t r = 0; p.masks != nullptr && r < p.rows; ++r) {
    SPLITSERVE_CHECK_VALUE(p.mask_rows[r] < p.num_masks,
                           "mask_rows: " << p.mask_rows[r] << " is not a row of masks");
  }
}

void sample(TensorView out_token_ids, TensorView logits, TensorView temperature, TensorView top_k,
            TensorView top_p, TensorView min_p, TensorView seeds, TensorView positions,
            Optional<TensorView> masks, Optional<TensorView> mask_rows) {
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
  set_masks(&params, masks, mask_rows);
  SPLITSERVE_RUN_CHECKED(sample, check_masks, params, logits.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(sample, splitserve::sample);
