// Calls functions of the CPU library for a process on another machine: a call on stdin, its answer on stdout.
//
// A call is its name, the memory that its tensors lie in, and its arguments; an answer is what it returned
// and that memory as it is then, or its error. All of it is in the machine's byte order. See remote.py.
#include <dlfcn.h>
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::String;
using tvm::ffi::Tensor;

void read_bytes(void* to, size_t count) {
  // The end of the input is the end of the process that asks.
  if (count > 0 && std::fread(to, count, 1, stdin) != 1) std::exit(0);
}

void write_bytes(const void* from, size_t count) {
  if (count > 0 && std::fwrite(from, count, 1, stdout) != 1) std::exit(1);
}

template <typename T>
T read() {
  T value;
  read_bytes(&value, sizeof value);
  return value;
}

template <typename T>
void write(T value) {
  write_bytes(&value, sizeof value);
}

std::string read_text() {
  std::string text(read<int64_t>(), '\0');
  read_bytes(text.data(), text.size());
  return text;
}

void write_text(const char* text, size_t size) {
  write<int64_t>(static_cast<int64_t>(size));
  write_bytes(text, size);
}

// As torch aligns its tensors.
constexpr size_t kAlignment = 64;

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

struct Memory {
  std::unique_ptr<char, Free> data;
  size_t size;
};

std::vector<Memory> read_memory() {
  std::vector<Memory> all(read<int64_t>());
  for (Memory& memory : all) {
    memory.size = read<int64_t>();
    const size_t whole = (memory.size / kAlignment + 1) * kAlignment;
    memory.data.reset(static_cast<char*>(std::aligned_alloc(kAlignment, whole)));
    read_bytes(memory.data.get(), memory.size);
  }
  return all;
}

struct Described {
  DLManagedTensor managed;
  std::vector<int64_t> shape, strides;
};

Tensor read_tensor(const std::vector<Memory>& memory) {
  auto* const own = new Described{};
  DLTensor& tensor = own->managed.dl_tensor;
  const auto place = read<int64_t>();
  tensor.byte_offset = 0;
  tensor.data = memory.at(place).data.get() + read<int64_t>();
  tensor.device = {kDLCPU, 0};
  tensor.dtype.code = read<uint8_t>();
  tensor.dtype.bits = read<uint8_t>();
  tensor.dtype.lanes = 1;
  tensor.ndim = read<int32_t>();
  own->shape.resize(tensor.ndim);
  own->strides.resize(tensor.ndim);
  for (int64_t& size : own->shape) size = read<int64_t>();
  for (int64_t& stride : own->strides) stride = read<int64_t>();
  tensor.shape = own->shape.data();
  tensor.strides = own->strides.data();
  own->managed.manager_ctx = own;
  own->managed.deleter = [](DLManagedTensor* self) { delete static_cast<Described*>(self->manager_ctx); };
  return Tensor::FromDLPack(&own->managed);
}

Any read_value(const std::vector<Memory>& memory) {
  switch (read<char>()) {
    case 'n':
      return {};
    case 'b':
      return read<char>() != 0;
    case 'i':
      return read<int64_t>();
    case 'f':
      return read<double>();
    case 's':
      return String(read_text());
    case 't':
      return read_tensor(memory);
    case 'a': {
      Array<Any> items;
      for (auto left = read<int64_t>(); left > 0; --left) items.push_back(read_value(memory));
      return items;
    }
    default:
      std::abort();
  }
}

// What cannot be sent, as a recorded program, cannot be used by another process either.
bool can_send(const Any& value) {
  if (auto items = value.as<Array<Any>>()) {
    for (const Any& item : *items) {
      if (!can_send(item)) return false;
    }
    return true;
  }
  return value == nullptr || value.as<int64_t>() || value.as<double>() || value.as<String>();
}

void write_value(const Any& value) {
  if (value == nullptr) {
    write('n');
  } else if (auto truth = value.as<bool>(); truth && value.type_index() == tvm::ffi::TypeIndex::kTVMFFIBool) {
    write('b'), write<char>(*truth);
  } else if (auto number = value.as<int64_t>()) {
    write('i'), write(*number);
  } else if (auto real = value.as<double>()) {
    write('f'), write(*real);
  } else if (auto text = value.as<String>()) {
    write('s'), write_text(text->data(), text->size());
  } else {
    const auto items = value.cast<Array<Any>>();
    write('a'), write<int64_t>(static_cast<int64_t>(items.size()));
    for (const Any& item : items) write_value(item);
  }
}

using Function = int (*)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

void write_error(const std::string& kind, const std::string& message) {
  write('e');
  write_text(kind.data(), kind.size());
  write_text(message.data(), message.size());
}

void answer(Function function, const std::vector<Any>& arguments) {
  std::vector<tvm::ffi::AnyView> views(arguments.begin(), arguments.end());
  TVMFFIAny raw{};
  const int status = function(nullptr, reinterpret_cast<const TVMFFIAny*>(views.data()),
                              static_cast<int32_t>(views.size()), &raw);
  if (status == 0) {
    Any result;
    *reinterpret_cast<TVMFFIAny*>(&result) = raw;
    if (!can_send(result))
      return write_error("NotImplementedError", "an answer of type " + result.GetTypeKey());
    write('v');
    write_value(result);
    return;
  }
  const tvm::ffi::Error error = tvm::ffi::details::MoveFromSafeCallRaised();
  write_error(error.kind(), error.message());
}

}  // namespace

int main() {
  for (;;) {
    const std::string name = read_text();
    const std::vector<Memory> memory = read_memory();
    std::vector<Any> arguments(read<int64_t>());
    for (Any& argument : arguments) argument = read_value(memory);
    void* const function = dlsym(RTLD_DEFAULT, ("__tvm_ffi_" + name).c_str());
    if (function == nullptr) {
      std::fprintf(stderr, "the library has no function %s\n", name.c_str());
      return 1;
    }
    answer(reinterpret_cast<Function>(function), arguments);
    for (const Memory& each : memory) write_bytes(each.data.get(), each.size);
    std::fflush(stdout);
  }
}
