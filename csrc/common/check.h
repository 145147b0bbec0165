// Argument checks shared by all bindings. A failed check raises a Python TypeError or ValueError naming the
// argument.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <initializer_list>

#include "common/cache_format.h"
#include "common/dtype.h"
#include "common/export.h"

namespace splitserve {

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

inline constexpr DLDataType kFloat32Type{kDLFloat, 32, 1};
inline constexpr DLDataType kBFloat16Type{kDLBfloat, 16, 1};
inline constexpr DLDataType kFloat16Type{kDLFloat, 16, 1};
inline constexpr DLDataType kInt8Type{kDLInt, 8, 1};
inline constexpr DLDataType kUInt8Type{kDLUInt, 8, 1};
inline constexpr DLDataType kInt32Type{kDLInt, 32, 1};
inline constexpr DLDataType kInt64Type{kDLInt, 64, 1};

inline bool same_type(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

inline const char* device_name(DLDeviceType device) {
  switch (device) {
    case kDLCPU:
      return "the CPU";
    case kDLCUDA:
      return "a CUDA device";
    default:
      return "an unsupported device";
  }
}

// Checks are calls: in line they would be most of what is compiled of a binding.
#define SPLITSERVE_CHECK [[gnu::noinline]]

// One tensor argument with its Python name; the checks return *this so that they chain. Activations may be
// float16 on devices that have it.
class Arg {
 public:
  Arg(const TensorView& tensor, const char* name, bool has_float16 = false)
      : tensor_(tensor), name_(name), has_float16_(has_float16) {}

  SPLITSERVE_CHECK const Arg& on(DLDeviceType device) const {
    if (tensor_.device().device_type != device) {
      TVM_FFI_THROW(ValueError) << name_ << ": expected a tensor on " << device_name(device)
                                << ", this one is on " << device_name(tensor_.device().device_type);
    }
    return *this;
  }

  SPLITSERVE_CHECK const Arg& on(DLDevice device) const {
    on(device.device_type);
    if (tensor_.device().device_id != device.device_id) {
      TVM_FFI_THROW(ValueError) << name_ << ": is on device " << tensor_.device().device_id
                                << ", the other tensors are on device " << device.device_id;
    }
    return *this;
  }

  SPLITSERVE_CHECK const Arg& rank(int ndim) const {
    if (tensor_.ndim() != ndim) {
      TVM_FFI_THROW(ValueError) << name_ << ": expected " << ndim << " dimensions, got " << tensor_.ndim();
    }
    return *this;
  }

  SPLITSERVE_CHECK const Arg& type(std::initializer_list<DLDataType> allowed) const {
    for (DLDataType candidate : allowed) {
      if (same_type(candidate, tensor_.dtype())) return *this;
    }
    TVM_FFI_THROW(TypeError) << name_ << ": unsupported dtype "
                             << tvm::ffi::DLDataTypeToString(tensor_.dtype());
  }

  SPLITSERVE_CHECK const Arg& size(int dim, int64_t expected) const {
    if (tensor_.size(dim) != expected) {
      TVM_FFI_THROW(ValueError) << name_ << ": expected size " << expected << " in dimension " << dim
                                << ", got " << tensor_.size(dim);
    }
    return *this;
  }

  SPLITSERVE_CHECK const Arg& rows_contiguous() const {
    if (tensor_.size(-1) > 1 && tensor_.stride(-1) != 1) {
      TVM_FFI_THROW(ValueError) << name_ << ": the last dimension must be contiguous";
    }
    return *this;
  }

  SPLITSERVE_CHECK const Arg& type_of(const TensorView& other) const {
    if (!same_type(tensor_.dtype(), other.dtype()))
      TVM_FFI_THROW(TypeError) << name_ << ": dtype differs from the other tensors";
    return *this;
  }

  // Of the elements of a KV cache: activations, or codes.
  int64_t cache_element_bytes() const {
    if (same_type(tensor_.dtype(), kInt8Type) || same_type(tensor_.dtype(), kUInt8Type)) return 1;
    return dtype_bytes(activation());
  }

  // Of a KV cache under activations of `dtype`.
  SPLITSERVE_CHECK CacheFormat cache_format(DType dtype) const {
    const bool is_int8 = same_type(tensor_.dtype(), kInt8Type);
    if (!is_int8 && !same_type(tensor_.dtype(), kUInt8Type)) {
      activation(dtype);
      return CacheFormat::kPlain;
    }
    if (dtype != DType::kBFloat16)
      TVM_FFI_THROW(TypeError) << name_ << ": a cache of codes takes bfloat16 activations only";
    return is_int8 ? CacheFormat::kInt8 : CacheFormat::kFp8;
  }

  // A KV cache [num_blocks, kv_heads, block_size, bytes] of codes that lie in one piece for each head of a
  // block, codes by eights, then scales.
  SPLITSERVE_CHECK const Arg& coded_by_heads() const {
    constexpr int64_t kEight = 8;
    if (tensor_.size(2) > 1 && tensor_.stride(2) != tensor_.size(3)) {
      TVM_FFI_THROW(ValueError) << name_ << ": the last two dimensions must be contiguous";
    }
    const auto address = reinterpret_cast<intptr_t>(tensor_.data_ptr());
    if ((address | tensor_.stride(0) | tensor_.stride(1)) % kEight != 0) {
      TVM_FFI_THROW(ValueError) << name_ << ": the codes of a head must begin at multiples of " << kEight
                                << " bytes";
    }
    return *this;
  }

  // A KV cache [num_blocks, kv_heads, block_size, head_dim] whose blocks are interleaved in pairs: of 4
  // bytes, or of 2 codes. A code's row ends with its scale, if there is one.
  SPLITSERVE_CHECK const Arg& interleaved(CacheFormat format) const {
    const bool is_plain = format == CacheFormat::kPlain;
    const int64_t pair = is_plain ? 4 / dtype_bytes(activation()) : 2;
    const int64_t block_size = tensor_.size(2), dim = tensor_.size(3);
    if (block_size == 0 || block_size % pair != 0) {
      TVM_FFI_THROW(ValueError) << name_ << ": block size must be a multiple of " << pair << ", got "
                                << block_size;
    }
    if (dim % pair != 0) {
      TVM_FFI_THROW(ValueError) << name_ << ": head size must be a multiple of " << pair << ", got " << dim;
    }
    if (tensor_.stride(3) != 1 || (block_size > 1 && tensor_.stride(2) != dim)) {
      TVM_FFI_THROW(ValueError) << name_ << ": the last two dimensions must be contiguous";
    }
    return *this;
  }

  // A one-dimensional parameter vector of a given type and length.
  SPLITSERVE_CHECK const Arg& vector(DLDataType dtype, int64_t length) const {
    return rank(1).type({dtype}).size(0, length).rows_contiguous();
  }

  SPLITSERVE_CHECK DType activation() const {
    if (has_float16_ && same_type(tensor_.dtype(), kFloat16Type)) return DType::kFloat16;
    type({kFloat32Type, kBFloat16Type});
    return same_type(tensor_.dtype(), kFloat32Type) ? DType::kFloat32 : DType::kBFloat16;
  }

  SPLITSERVE_CHECK const Arg& activation(DType expected) const {
    if (activation() != expected)
      TVM_FFI_THROW(TypeError) << name_ << ": dtype differs from the other tensors";
    return *this;
  }

  SPLITSERVE_CHECK IndexArray indices(int64_t length) const {
    rank(1).type({kInt32Type, kInt64Type}).size(0, length).rows_contiguous();
    return {tensor_.data_ptr(), same_type(tensor_.dtype(), kInt64Type)};
  }

  template <typename T>
  T* data() const {
    return static_cast<T*>(tensor_.data_ptr());
  }

 private:
  const TensorView& tensor_;
  const char* name_;
  bool has_float16_;
};

inline Arg cpu_arg(const TensorView& tensor, const char* name) { return Arg(Arg(tensor, name).on(kDLCPU)); }

// Raised by value checks, for example an id beyond a table's end.
#define SPLITSERVE_CHECK_VALUE(condition, message) \
  do {                                             \
    if (!(condition)) [[unlikely]] {               \
      TVM_FFI_THROW(ValueError) << message;        \
    }                                              \
  } while (false)

}  // namespace splitserve
