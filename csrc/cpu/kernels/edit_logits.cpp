// Adds to single logits what requests ask for; -inf forbids a token.
#include "common/logit_rules.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {

void edit_logits(const EditLogitsParams& p) {
  parallel_tasks(p.count, p.all_edits, [&p](int64_t i) {
    float* row = p.logits + p.rows[i] * p.logits_stride;
    for (int32_t j = p.cu_edits[i]; j < p.cu_edits[i + 1]; ++j) {
      row[p.token_ids[j]] = edited(row[p.token_ids[j]], p.values[j]);
    }
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
