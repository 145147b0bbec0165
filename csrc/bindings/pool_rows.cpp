// Checks and binding of pool_rows.
#include "common/pool_rows.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

[[maybe_unused]] void check_runs(const PoolRowsParams& p) {
  SPLITSERVE_CHECK_VALUE(p.ends[0] == 0 && p.ends[p.runs] == p.tokens,
                         "ends: must run from 0 to the " << p.tokens << " rows of states");
  for (int64_t i = 0; i < p.runs; ++i) {
    SPLITSERVE_CHECK_VALUE(p.ends[i + 1] >= p.ends[i], "ends: decreases at run " << i);
    SPLITSERVE_CHECK_VALUE(p.rows[i] >= 0 && p.rows[i] < p.num_rows,
                           "rows: " << p.rows[i] << " is outside the " << p.num_rows << " totals");
  }
}

Pool pool_of(const tvm::ffi::String& kind) {
  if (kind == "sum") return Pool::kSum;
  if (kind == "weighted_sum") return Pool::kWeightedSum;
  SPLITSERVE_CHECK_VALUE(kind == "max",
                         "kind: expected 'sum', 'weighted_sum' or 'max', got '" << kind << "'");
  return Pool::kMax;
}

void pool_rows(TensorView totals, TensorView states, TensorView ends, TensorView rows, TensorView positions,
               const tvm::ffi::String& kind) {
  const DeviceArgs args(states, "states");
  PoolRowsParams params{};
  params.dtype = args(states, "states").rank(2).rows_contiguous().activation();
  params.tokens = states.size(0);
  params.size = states.size(1);
  args(totals, "totals").rank(2).type({kFloat32Type}).size(1, params.size).rows_contiguous();
  params.num_rows = totals.size(0);
  args(rows, "rows").rank(1);
  params.runs = rows.size(0);
  params.ends = args(ends, "ends").vector(kInt32Type, params.runs + 1).data<int32_t>();
  params.rows = args(rows, "rows").vector(kInt32Type, params.runs).data<int32_t>();
  params.positions = args(positions, "positions").vector(kInt32Type, params.runs).data<int32_t>();
  params.totals = static_cast<float*>(totals.data_ptr());
  params.states = states.data_ptr();
  params.totals_stride = totals.stride(0);
  params.states_stride = states.stride(0);
  params.kind = pool_of(kind);
  SPLITSERVE_RUN_CHECKED(pool_rows, check_runs, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(pool_rows, splitserve::pool_rows);
