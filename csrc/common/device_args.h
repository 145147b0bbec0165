// The tensor arguments of one call: all lie on one device, of the kind the binding is compiled for.
#pragma once

// The folder of that device is on the include path.
#include "common/check.h"
#include "device.h"

namespace splitserve {

class DeviceArgs {
 public:
  DeviceArgs(const TensorView& first, const char* name) : device_(first.device()) {
    Arg(first, name).on(kDeviceType);
  }

  Arg operator()(const TensorView& tensor, const char* name) const {
    return Arg(Arg(tensor, name, kHasFloat16).on(device_));
  }

  DLDevice device() const { return device_; }

 private:
  DLDevice device_;
};

}  // namespace splitserve
