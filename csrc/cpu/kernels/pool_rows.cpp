// Reduces the hidden states of each row's tokens, one token after the other: so neither chunks nor threads,
// which share out the columns, change a bit.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// NaN stays NaN.
SPLITSERVE_INLINE Vec larger(Vec a, Vec b) { return (a >= b) | (a != a) ? a : b; }

SPLITSERVE_INLINE Vec joined(Pool kind, Vec total, Vec state) {
  return kind == Pool::kMax ? larger(total, state) : total + state;
}

template <typename T>
void pool_run(const PoolRowsParams& p, int64_t run, int64_t column, int64_t count) {
  float* totals = p.totals + p.rows[run] * p.totals_stride + column;
  const int64_t begin = p.ends[run], end = p.ends[run + 1];
  const T* states = static_cast<const T*>(p.states) + begin * p.states_stride + column;
  Vec total = load_up_to(totals, count);
  for (int64_t i = 0; i < end - begin; ++i) {
    const int64_t position = p.positions[run] + i;
    Vec state = load_up_to(states + i * p.states_stride, count);
    if (p.kind == Pool::kWeightedSum) state = state * static_cast<float>(position + 1);
    total = position == 0 ? state : joined(p.kind, total, state);
  }
  store_up_to(totals, total, count);
}

template <typename T>
void pool_runs(const PoolRowsParams& p) {
  const int64_t columns = (p.size + kLanes - 1) / kLanes;
  parallel_for(p.runs * columns, p.tokens * p.size, [&p, columns](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % columns * kLanes;
      pool_run<T>(p, i / columns, column, p.size - column);
    }
  });
}

}  // namespace

void pool_rows(const PoolRowsParams& p) {
  if (p.dtype == DType::kBFloat16) {
    pool_runs<BFloat16>(p);
  } else {
    pool_runs<float>(p);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
