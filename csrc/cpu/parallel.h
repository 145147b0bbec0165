// Splits a range of independent tasks over threads. Results never depend on the split.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace splitserve::SPLITSERVE_ISA {

// How much one part may touch, so that a thread which is late or interrupted leaves little to wait for: 8
// million products take about 30 us.
inline constexpr int64_t kMaxPartWork = int64_t{1} << 23;

// Parts of `count` tasks: four per thread, or another small number that leaves equal threads more equal
// shares.
inline int64_t balanced_parts(int64_t count, int64_t threads) {
  int64_t best = 0, fewest = INT64_MAX;
  constexpr int64_t kPartsPerThread[] = {4, 3, 5, 6, 7, 8};
  for (const int64_t each : kPartsPerThread) {
    const int64_t parts = each * threads, tasks = (count + parts - 1) / parts * each;
    if (tasks < fewest) best = parts, fewest = tasks;
  }
  return best;
}

// Calls fn(task) for each task in [0, count); `work` is the number of elements the whole call touches.
template <typename Fn>
void parallel_tasks(int64_t count, int64_t work, const Fn& fn) {
  run_tasks(
      count, work, [](const void* context, int64_t task) { (*static_cast<const Fn*>(context))(task); }, &fn);
}

// Calls fn(begin, end) for consecutive parts that cover [0, count).
template <typename Fn>
void parallel_for(int64_t count, int64_t work, const Fn& fn) {
  int64_t parts = 1;
  if (work >= kMinParallelWork && num_threads() > 1) {
    parts = work / kMaxPartWork;
    if (parts <= 8 * num_threads()) parts = balanced_parts(count, num_threads());
  }
  if (parts > count) parts = count;
  parallel_tasks(parts, work, [&](int64_t part) { fn(count * part / parts, count * (part + 1) / parts); });
}

}  // namespace splitserve::SPLITSERVE_ISA
