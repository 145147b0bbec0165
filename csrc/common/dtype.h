// Element types the kernels know, and integer inputs that may be 32 or 64 bits wide.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace splitserve {

enum class DType { kFloat32, kBFloat16, kFloat16 };

inline constexpr int64_t dtype_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// A read-only vector of indices; the width is looked at once per element, which costs nothing beside the row
// it names.
struct IndexArray {
  const void* data;
  bool is_64bit;

  SPLITSERVE_HOST_DEVICE int64_t operator[](int64_t i) const {
    return is_64bit ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

}  // namespace splitserve
