// A buffer of each thread that grows.
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

thread_local Buffer t_buffer;

}  // namespace

void* scratch(int64_t bytes) {
  if (bytes <= t_buffer.bytes) return t_buffer.memory.get();
  t_buffer.bytes = 0;
  t_buffer.memory.reset();
  const int64_t rounded = (bytes + kLine - 1) / kLine * kLine;
  t_buffer.memory.reset(std::aligned_alloc(kLine, static_cast<size_t>(rounded)));
  if (t_buffer.memory == nullptr) TVM_FFI_THROW(RuntimeError) << "no memory for " << bytes << " bytes";
  t_buffer.bytes = rounded;
  return t_buffer.memory.get();
}

}  // namespace splitserve
