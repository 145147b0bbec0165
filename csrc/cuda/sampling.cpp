// Checks and bindings of the sampling kernels on the GPU. Values on the device are checked by the kernels.
#include "cuda/sampling.h"

#include "common/device_args.h"
#include "common/logit_rules.h"

namespace splitserve {
namespace {

// Selection divides token ids into two digits of 11 bits.
constexpr int64_t kMaxVocab = int64_t{1} << 22;

const float* logits_of(const DeviceArgs& args, const TensorView& logits) {
  args(logits, "logits").rank(2).type({kFloat32Type}).rows_contiguous();
  SPLITSERVE_CHECK_VALUE(logits.size(1) > 0 && logits.size(1) <= kMaxVocab,
                         "logits: vocabulary must be from 1 to " << kMaxVocab << ", got " << logits.size(1));
  SPLITSERVE_CHECK_VALUE(logits.size(0) < INT32_MAX, "logits: too many rows");
  return static_cast<const float*>(logits.data_ptr());
}

void set_masks(SampleParams* p, const DeviceArgs& args, const Optional<TensorView>& masks,
               const Optional<TensorView>& mask_rows) {
  SPLITSERVE_CHECK_VALUE(masks.has_value() == mask_rows.has_value(),
                         "mask_rows: given if and only if masks is");
  if (!masks.has_value()) return;
  const TensorView table = *masks, rows = *mask_rows;
  args(table, "masks").rank(2).type({kInt32Type}).size(1, mask_words(p->vocab)).rows_contiguous();
  p->masks = static_cast<const uint32_t*>(table.data_ptr());
  p->masks_stride = table.stride(0);
  p->num_masks = static_cast<int32_t>(table.size(0));
  p->mask_rows = args(rows, "mask_rows").vector(kInt32Type, p->rows).data<int32_t>();
}

void sample(TensorView out_token_ids, TensorView logits, TensorView temperature, TensorView top_k,
            TensorView top_p, TensorView min_p, TensorView seeds, TensorView positions,
            Optional<TensorView> masks, Optional<TensorView> mask_rows) {
  const DeviceArgs args(logits, "logits");
  SampleParams params{};
  params.logits = logits_of(args, logits);
  params.rows = static_cast<int32_t>(logits.size(0));
  params.vocab = static_cast<int32_t>(logits.size(1));
  params.logits_stride = logits.stride(0);
  params.out_token_ids = args(out_token_ids, "out_token_ids").vector(kInt32Type, params.rows).data<int32_t>();
  params.temperature = args(temperature, "temperature").vector(kFloat32Type, params.rows).data<float>();
  params.top_k = args(top_k, "top_k").vector(kInt32Type, params.rows).data<int32_t>();
  params.top_p = args(top_p, "top_p").vector(kFloat32Type, params.rows).data<float>();
  params.min_p = args(min_p, "min_p").vector(kFloat32Type, params.rows).data<float>();
  params.seeds = args(seeds, "seeds").vector(kInt64Type, params.rows).data<int64_t>();
  params.positions = args(positions, "positions").vector(kInt64Type, params.rows).data<int64_t>();
  set_masks(&params, args, masks, mask_rows);
  SPLITSERVE_RUN(sample, params, args.device());
}

void top_logprobs(TensorView out_ids, TensorView out_logprobs, TensorView out_ranks, TensorView logits,
                  TensorView rows, TensorView token_ids) {
  const DeviceArgs args(logits, "logits");
  LogprobsParams params{};
  params.logits = logits_of(args, logits);
  args(rows, "rows").rank(1);
  params.count = static_cast<int32_t>(rows.size(0));
  params.vocab = static_cast<int32_t>(logits.size(1));
  params.all_rows = static_cast<int32_t>(logits.size(0));
  args(out_ids, "out_ids").rank(2).type({kInt32Type}).size(0, params.count).rows_contiguous();
  const int64_t top = out_ids.size(1) - 1;
  SPLITSERVE_CHECK_VALUE(top >= 0 && top <= kMaxTopLogprobs,
                         "out_ids: needs 1 to " << kMaxTopLogprobs + 1 << " columns, has " << top + 1);
  params.top = static_cast<int32_t>(top);
  args(out_logprobs, "out_logprobs").rank(2).type({kFloat32Type}).size(0, params.count).size(1, top + 1);
  args(out_logprobs, "out_logprobs").rows_contiguous();
  params.out_ids = static_cast<int32_t*>(out_ids.data_ptr());
  params.out_logprobs = static_cast<float*>(out_logprobs.data_ptr());
  params.out_ranks = args(out_ranks, "out_ranks").vector(kInt32Type, params.count).data<int32_t>();
  params.rows = args(rows, "rows").vector(kInt32Type, params.count).data<int32_t>();
  params.token_ids = args(token_ids, "token_ids").vector(kInt32Type, params.count).data<int32_t>();
  params.ids_stride = out_ids.stride(0);
  params.logprobs_stride = out_logprobs.stride(0);
  params.logits_stride = logits.stride(0);
  SPLITSERVE_RUN(top_logprobs, params, args.device());
}

void token_logprobs(TensorView out, TensorView logits, TensorView rows, TensorView cu_tokens,
                    TensorView token_ids) {
  const DeviceArgs args(logits, "logits");
  TokenLogprobsParams params{};
  params.logits = logits_of(args, logits);
  args(rows, "rows").rank(1);
  args(token_ids, "token_ids").rank(1);
  params.count = static_cast<int32_t>(rows.size(0));
  params.vocab = static_cast<int32_t>(logits.size(1));
  params.all_rows = static_cast<int32_t>(logits.size(0));
  params.all_tokens = static_cast<int32_t>(token_ids.size(0));
  params.out = args(out, "out").vector(kFloat32Type, params.all_tokens).data<float>();
  params.rows = args(rows, "rows").vector(kInt32Type, params.count).data<int32_t>();
  params.cu_tokens = args(cu_tokens, "cu_tokens").vector(kInt32Type, params.count + 1).data<int32_t>();
  params.token_ids = args(token_ids, "token_ids").vector(kInt32Type, params.all_tokens).data<int32_t>();
  params.logits_stride = logits.stride(0);
  // Without rows of logits there is nothing to read, not even for a row that is not there.
  SPLITSERVE_CHECK_VALUE(params.all_rows > 0 || params.count == 0, "logits: has no rows");
  SPLITSERVE_RUN(token_logprobs, params, args.device());
}

void apply_penalties(TensorView logits, TensorView rows, TensorView token_ids, TensorView history_rows,
                     TensorView prompt_lens, TensorView total_lens, TensorView repetition,
                     TensorView frequency, TensorView presence) {
  const DeviceArgs args(logits, "logits");
  PenaltyParams params{};
  params.logits = const_cast<float*>(logits_of(args, logits));
  args(token_ids, "token_ids").rank(2).type({kInt32Type}).rows_contiguous();
  args(rows, "rows").rank(1);
  const int64_t count = rows.size(0);
  params.count = static_cast<int32_t>(count);
  params.rows = args(rows, "rows").vector(kInt32Type, count).data<int32_t>();
  params.token_ids = static_cast<const int32_t*>(token_ids.data_ptr());
  params.history_rows = args(history_rows, "history_rows").vector(kInt32Type, count).data<int32_t>();
  params.prompt_lens = args(prompt_lens, "prompt_lens").vector(kInt32Type, count).data<int32_t>();
  params.total_lens = args(total_lens, "total_lens").vector(kInt32Type, count).data<int32_t>();
  params.repetition = args(repetition, "repetition").vector(kFloat32Type, count).data<float>();
  params.frequency = args(frequency, "frequency").vector(kFloat32Type, count).data<float>();
  params.presence = args(presence, "presence").vector(kFloat32Type, count).data<float>();
  params.vocab = static_cast<int32_t>(logits.size(1));
  params.all_rows = static_cast<int32_t>(logits.size(0));
  params.histories = static_cast<int32_t>(token_ids.size(0));
  params.max_len = static_cast<int32_t>(token_ids.size(1));
  params.logits_stride = logits.stride(0);
  params.token_ids_stride = token_ids.stride(0);
  SPLITSERVE_RUN(apply_penalties, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(sample, splitserve::sample);
SPLITSERVE_EXPORT(top_logprobs, splitserve::top_logprobs);
SPLITSERVE_EXPORT(token_logprobs, splitserve::token_logprobs);
SPLITSERVE_EXPORT(apply_penalties, splitserve::apply_penalties);
