// Helper threads that claim tasks: a helper the system has not scheduled yet is never waited for.
//
// OpenMP's barrier waits for every thread of the team. On a machine whose cores are shared, as engine-core,
// frontend and worker share them, that costs a scheduler quantum (milliseconds) per kernel.
#pragma once

#include <cstdint>

namespace splitserve {

// Handing tasks to a helper that is awake costs a microsecond; below this many touched elements one thread is
// faster.
inline constexpr int64_t kMinParallelWork = 16384;
// Waking one takes as long as a core needs for about this many, read from memory once.
inline constexpr int64_t kMinWakingWork = 3 << 20;

using TaskFunction = void (*)(const void* context, int64_t task);

// Calls function(context, task) once for each task in [0, count), on the caller and, if `work` elements are
// worth it, on helpers up to num_threads(); returns when all are done. A call made while another is in
// progress runs on its caller alone.
void run_tasks(int64_t count, int64_t work, TaskFunction function, const void* context);

// As long as it lives, this thread has the helpers to itself: they are woken once, stay awake between calls,
// and sleep at its end, so that the core is free for others until the next step. Helpers that were not woken
// are left asleep by all but large calls. Without effect within another one, and beside another thread's.
class HelperSession {
 public:
  // `work` of all calls together, as far as it is known: it decides whether the helpers are woken at once.
  explicit HelperSession(int64_t work);
  ~HelperSession();
  HelperSession(const HelperSession&) = delete;
  HelperSession& operator=(const HelperSession&) = delete;

  // Work of the calls so far that is worth a helper.
  int64_t work() const;

 private:
  bool is_owner_;
};

}  // namespace splitserve
