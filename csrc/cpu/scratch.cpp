// Buffers of each thread that grow.
#include "cpu/scratch.h"

#include <cstdlib>
#include <memory>

#include "common/check.h"

namespace splitserve {
namespace {

constexpr int64_t kLine = 64;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Buffer {
  std::unique_ptr<void, Free> memory;
  int64_t bytes = 0;
};

thread_local Buffer t_call, t_task;

void* grown(Buffer& buffer, int64_t bytes) {
  if (bytes <= buffer.bytes) return buffer.memory.get();
  buffer.bytes = 0;
  buffer.memory.reset();
  const int64_t rounded = (bytes + kLine - 1) / kLine * kLine;
  buffer.memory.reset(std::aligned_alloc(kLine, static_cast<size_t>(rounded)));
  if (buffer.memory != nullptr) buffer.bytes = rounded;
  return buffer.memory.get();
}

}  // namespace

void* scratch(int64_t bytes) {
  void* const memory = grown(t_call, bytes);
  if (memory == nullptr && bytes > 0) TVM_FFI_THROW(RuntimeError) << "no memory for " << bytes << " bytes";
  return memory;
}

void* task_scratch(int64_t bytes) { return grown(t_task, bytes); }

}  // namespace splitserve
