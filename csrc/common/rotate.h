// The rotation of one pair of elements by an angle: rotary position embedding on every device.
#pragma once

#include "common/host_device.h"

namespace splitserve {

template <typename V>
struct Rotated {
  V x, y;
};

// `V` is float or a vector of them.
template <typename V>
SPLITSERVE_HOST_DEVICE inline Rotated<V> rotate(V x, V y, V cosine, V sine) {
  return {x * cosine - y * sine, y * cosine + x * sine};
}

}  // namespace splitserve
