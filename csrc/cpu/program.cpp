// Records the kernels that a thread runs, and makes of them one function that runs them again.
#include "cpu/program.h"

#include <memory>

#include "common/check.h"

namespace splitserve {
namespace {

thread_local std::unique_ptr<Program> t_recorded;

void start_recording() {
  SPLITSERVE_CHECK_VALUE(t_recorded == nullptr, "start_recording: this thread is recording already");
  t_recorded = std::make_unique<Program>();
}

tvm::ffi::Function stop_recording() {
  SPLITSERVE_CHECK_VALUE(t_recorded != nullptr, "stop_recording: this thread is not recording");
  const std::shared_ptr<Program> program = std::move(t_recorded);
  return tvm::ffi::Function::FromTyped([program] { program->run(); });
}

}  // namespace

Program* recorded_program() { return t_recorded.get(); }

}  // namespace splitserve

SPLITSERVE_EXPORT(start_recording, splitserve::start_recording);
SPLITSERVE_EXPORT(stop_recording, splitserve::stop_recording);
