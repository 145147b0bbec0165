// Splits a range of independent tasks over threads. Results never depend on the split.
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace splitserve::SPLITSERVE_ISA {

// Waking the team costs a few microseconds; below this many touched elements one thread is faster.
inline constexpr int64_t kMinParallelWork = 32768;

// Calls fn(begin, end) for consecutive parts of [0, count); `work` is the number of elements the whole call
// touches.
template <typename Fn>
void parallel_for(int64_t count, int64_t work, const Fn& fn) {
  int64_t threads = work < kMinParallelWork ? 1 : num_threads();
  if (threads > count) threads = count;
  if (threads <= 1) {
    if (count > 0) fn(int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast<int>(threads)) schedule(static, 1)
  for (int64_t t = 0; t < threads; ++t) fn(count * t / threads, count * (t + 1) / threads);
}

// Calls fn(task) for each task; for tasks of unequal length.
template <typename Fn>
void parallel_tasks(int64_t count, int64_t work, const Fn& fn) {
  int64_t threads = work < kMinParallelWork ? 1 : num_threads();
  if (threads > count) threads = count;
#pragma omp parallel for num_threads(static_cast<int>(threads > 0 ? threads : 1)) \
    schedule(dynamic, 1) if (threads > 1)
  for (int64_t task = 0; task < count; ++task) fn(task);
}

}  // namespace splitserve::SPLITSERVE_ISA
