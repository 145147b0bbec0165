// The pool behind run_tasks: one job at a time, described by atomics that idle helpers watch.
#include "cpu/thread_pool.h"

#include <atomic>
#include <thread>

#include "cpu/isa.h"
#include "cpu/relax.h"

namespace splitserve {
namespace {

// How long an idle helper watches for the next job before it sleeps: kernels of one step follow each other
// closely.
constexpr int kIdleSpins = 2000;
// The same within a session, some milliseconds: nothing lasts longer but kernels that use one thread.
constexpr int kSessionSpins = 200000;
// The same after one, a few microseconds: the second half of a step follows the first.
constexpr int kClosingSpins = 200;

class ThreadPool {
 public:
  void run(int64_t count, int64_t work, TaskFunction function, const void* context) {
    const int threads = work < kMinParallelWork ? 1 : num_threads();
    if (threads <= 1 || count <= 1 || count > kMaxTasks || !begin(work)) {
      for (int64_t task = 0; task < count; ++task) function(context, task);
      return;
    }
    function_.store(function, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    publish(count, threads - 1);
    while (run_one_task()) {
    }
    // Only tasks that a helper has begun are left.
    for (int spin = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spin) {
      // The helper may be waiting for the very core this thread spins on.
      spin < kIdleSpins ? relax() : std::this_thread::yield();
    }
    if (!t_session.is_open) busy_.clear(std::memory_order_release);
  }

  // Whether the helpers are now this thread's.
  bool open_session(int64_t work) {
    if (t_session.is_open || busy_.test_and_set(std::memory_order_acquire)) return false;
    t_session = {true, false, 0};
    idle_spins_.store(kSessionSpins, std::memory_order_relaxed);
    if (work >= kMinWakingWork && num_threads() > 1) {
      // No tasks: just out of their sleep.
      publish(0, num_threads() - 1);
      t_session.are_awake = true;
    }
    return true;
  }

  void close_session() {
    t_session.is_open = false;
    idle_spins_.store(kClosingSpins, std::memory_order_relaxed);
    busy_.clear(std::memory_order_release);
  }

  static int64_t session_work() { return t_session.work; }

 private:
  static constexpr int64_t kMaxTasks = UINT32_MAX;

  struct Session {
    bool is_open, are_awake;
    int64_t work;
  };
  static thread_local Session t_session;

  // Whether a job may be given to the helpers.
  bool begin(int64_t work) {
    if (t_session.is_open) {
      t_session.work += work;
      t_session.are_awake |= work >= kMinWakingWork;
      return t_session.are_awake;
    }
    if (busy_.test_and_set(std::memory_order_acquire)) return false;
    idle_spins_.store(kIdleSpins, std::memory_order_relaxed);
    return true;
  }

  void publish(int64_t count, int helpers) {
    start_helpers(helpers);
    count_.store(count, std::memory_order_relaxed);
    helpers_wanted_.store(helpers, std::memory_order_relaxed);
    unfinished_.store(count, std::memory_order_relaxed);
    ++job_;
    unclaimed_.store((uint64_t{job_} << 32) | static_cast<uint64_t>(count), std::memory_order_release);
    published_.store(job_, std::memory_order_release);
    published_.notify_all();
  }

  void start_helpers(int wanted) {
    for (; num_helpers_ < wanted; ++num_helpers_) {
      std::thread([this, index = num_helpers_] { help(index); }).detach();
    }
  }

  // Claims a task of the current job and runs it; false if none is left. The job's number is part of the
  // claimed word, so a helper that read the fields of a job which has ended since fails to claim.
  bool run_one_task() {
    uint64_t unclaimed = unclaimed_.load(std::memory_order_acquire);
    while (true) {
      const auto left = static_cast<int64_t>(unclaimed & UINT32_MAX);
      if (left == 0) return false;
      const TaskFunction function = function_.load(std::memory_order_relaxed);
      const void* context = context_.load(std::memory_order_relaxed);
      const int64_t count = count_.load(std::memory_order_relaxed);
      if (unclaimed_.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel)) {
        function(context, count - left);
        unfinished_.fetch_sub(1, std::memory_order_release);
        return true;
      }
    }
  }

  void help(int index) {
    uint32_t seen = 0;
    while (true) {
      for (int spin = 0; published_.load(std::memory_order_acquire) == seen; ++spin) {
        if (spin >= idle_spins_.load(std::memory_order_relaxed)) break;
        relax();
      }
      published_.wait(seen, std::memory_order_acquire);
      seen = published_.load(std::memory_order_acquire);
      if (index >= helpers_wanted_.load(std::memory_order_relaxed)) continue;
      while (run_one_task()) {
      }
    }
  }

  std::atomic_flag busy_;
  int num_helpers_ = 0;  // guarded by busy_, like job_
  uint32_t job_ = 0;
  std::atomic<uint32_t> published_{0};
  std::atomic<uint64_t> unclaimed_{
      0};  // number of the job in the upper half, tasks not yet claimed in the lower
  std::atomic<int64_t> unfinished_{0};
  std::atomic<int> helpers_wanted_{0};
  std::atomic<int> idle_spins_{kIdleSpins};
  std::atomic<TaskFunction> function_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int64_t> count_{0};
};

thread_local ThreadPool::Session ThreadPool::t_session{};

// Never destroyed: helpers may still watch it while the process exits.
ThreadPool& pool() {
  static ThreadPool* const instance = new ThreadPool;
  return *instance;
}

}  // namespace

void run_tasks(int64_t count, int64_t work, TaskFunction function, const void* context) {
  pool().run(count, work, function, context);
}

HelperSession::HelperSession(int64_t work) : is_owner_(pool().open_session(work)) {}

HelperSession::~HelperSession() {
  if (is_owner_) pool().close_session();
}

int64_t HelperSession::work() const { return is_owner_ ? ThreadPool::session_work() : 0; }

}  // namespace splitserve
