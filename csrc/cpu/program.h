// A recorded sequence of kernel calls; and the one way in which bindings run kernels, so that they can be
// recorded.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace splitserve {

// Calls with their arguments, in order. What the arguments point to has to outlive the program.
class Program {
 public:
  void add(std::function<void()> call) { calls_.push_back(std::move(call)); }

  // Runs every call, in order, with the pool's helpers at hand; what a call throws ends the run.
  void run() {
    const HelperSession session(work_);
    for (const auto& call : calls_) call();
    work_ = session.work();
  }

 private:
  std::vector<std::function<void()>> calls_;
  int64_t work_ = 0;  // of the last run
};

// The program that this thread records into, nullptr if it records none.
Program* recorded_program();

// Calls function(params), and notes the call if this thread is recording. What depends on values in memory,
// the check of ids for one, belongs into the function: a replay has other values.
template <typename Params, typename Function>
void run_kernel(const Params& params, Function function) {
  static_assert(std::is_trivially_copyable_v<Params>, "a recorded call keeps a copy");
  function(params);
  if (Program* program = recorded_program()) program->add([params, function] { function(params); });
}

}  // namespace splitserve

// Run a kernel of the current instruction set, which a replay looks up again.
#define SPLITSERVE_RUN_KERNEL(name, params) \
  splitserve::run_kernel(params, [](const auto& p) { SPLITSERVE_CALL_KERNEL(name, p); })
