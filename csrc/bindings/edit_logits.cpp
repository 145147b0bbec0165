// Checks and binding of edit_logits.
#include "common/edit_logits.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

[[maybe_unused]] void check_edits(const EditLogitsParams& p) {
  SPLITSERVE_CHECK_VALUE(p.cu_edits[0] == 0 && p.cu_edits[p.count] == p.all_edits,
                         "cu_edits: must begin with 0 and end with the number of token_ids");
  for (int64_t i = 0; i < p.count; ++i) {
    SPLITSERVE_CHECK_VALUE(p.rows[i] >= 0 && p.rows[i] < p.all_rows,
                           "rows: " << p.rows[i] << " is not a row of logits");
    SPLITSERVE_CHECK_VALUE(p.cu_edits[i] <= p.cu_edits[i + 1], "cu_edits: must not decrease");
  }
  for (int64_t j = 0; j < p.all_edits; ++j) {
    SPLITSERVE_CHECK_VALUE(p.token_ids[j] >= 0 && p.token_ids[j] < p.vocab,
                           "token_ids: " << p.token_ids[j] << " is not in the vocabulary");
  }
}

void edit_logits(TensorView logits, TensorView rows, TensorView cu_edits, TensorView token_ids,
                 TensorView values) {
  const DeviceArgs args(logits, "logits");
  args(logits, "logits").rank(2).type({kFloat32Type}).rows_contiguous();
  args(rows, "rows").rank(1);
  args(token_ids, "token_ids").rank(1);
  EditLogitsParams params{};
  params.count = rows.size(0);
  params.all_edits = token_ids.size(0);
  params.all_rows = logits.size(0);
  params.vocab = logits.size(1);
  params.logits = static_cast<float*>(logits.data_ptr());
  params.logits_stride = logits.stride(0);
  params.rows = args(rows, "rows").vector(kInt32Type, params.count).data<int32_t>();
  params.cu_edits = args(cu_edits, "cu_edits").vector(kInt32Type, params.count + 1).data<int32_t>();
  params.token_ids = args(token_ids, "token_ids").vector(kInt32Type, params.all_edits).data<int32_t>();
  params.values = args(values, "values").vector(kFloat32Type, params.all_edits).data<float>();
  SPLITSERVE_RUN_CHECKED(edit_logits, check_edits, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(edit_logits, splitserve::edit_logits);
