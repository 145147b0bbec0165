// How Python calls a function of a library: its arguments as tvm-ffi hands them over, its errors as
// exceptions.
//
// tvm-ffi has a macro for it, which writes what is told of a wrong argument into every function, once for
// each of its arguments: much of what the compiler did for a binding. Here that is one function per type.
#pragma once

#include <tvm/ffi/function.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace splitserve {

struct Call {
  const char* name;
  const tvm::ffi::AnyView* args;
  int32_t num_args;
};

[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_count(const Call& call, size_t expected) {
  TVM_FFI_THROW(TypeError) << call.name << ": arguments: expected " << expected << ", got " << call.num_args;
}

[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_argument(const Call& call, int32_t index,
                                                                   const std::string& expected,
                                                                   const std::string& got) {
  TVM_FFI_THROW(TypeError) << call.name << ": expected " << expected << " as argument " << index + 1
                           << ", got " << got;
}

template <typename T>
[[gnu::noinline]] T argument(const Call& call, int32_t index) {
  std::optional<T> value = call.args[index].try_cast<T>();
  if (!value.has_value()) [[unlikely]] {
    const TVMFFIAny raw = call.args[index].CopyToTVMFFIAny();
    refuse_argument(call, index, tvm::ffi::TypeTraits<T>::TypeStr(),
                    tvm::ffi::TypeTraits<T>::GetMismatchTypeInfo(&raw));
  }
  return *std::move(value);
}

template <auto kFunction>
struct Exported;

template <typename R, typename... Args, R (*kFunction)(Args...)>
struct Exported<kFunction> {
  static void run(const Call& call, tvm::ffi::Any* result) {
    if (call.num_args != static_cast<int32_t>(sizeof...(Args))) refuse_count(call, sizeof...(Args));
    run_with(call, result, std::index_sequence_for<Args...>());
  }

 private:
  template <size_t... kIndices>
  static void run_with(const Call& call, tvm::ffi::Any* result, std::index_sequence<kIndices...>) {
    if constexpr (std::is_void_v<R>) {
      kFunction(argument<std::remove_cvref_t<Args>>(call, kIndices)...);
    } else {
      *result = kFunction(argument<std::remove_cvref_t<Args>>(call, kIndices)...);
    }
  }
};

// 0, or -1 and the exception noted where Python finds it.
[[gnu::noinline]] inline int guarded(void (*run)(const Call&, tvm::ffi::Any*), const Call& call,
                                     TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  run(call, reinterpret_cast<tvm::ffi::Any*>(result));
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace splitserve

// Exports `function` to Python as `name`.
#define SPLITSERVE_EXPORT(name, function)                                                                    \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t num_args,         \
                                                     TVMFFIAny* result) {                                    \
    return splitserve::guarded(splitserve::Exported<function>::run,                                          \
                               {#name, reinterpret_cast<const tvm::ffi::AnyView*>(args), num_args}, result); \
  }
