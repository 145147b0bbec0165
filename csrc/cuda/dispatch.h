// From what is known at run time to the parameters of a kernel template.
#pragma once

#include "common/dtype.h"
#include "common/half.h"

namespace splitserve::cuda {

// Calls fn.operator()<kAligned>().
template <typename Fn>
void with_alignment(bool aligned, const Fn& fn) {
  if (aligned) {
    fn.template operator()<true>();
  } else {
    fn.template operator()<false>();
  }
}

// Calls fn.operator()<T, kAligned>() with the element type of dtype.
template <typename Fn>
void with_type(DType dtype, bool aligned, const Fn& fn) {
  with_alignment(aligned, [&]<bool kAligned>() {
    switch (dtype) {
      case DType::kFloat32:
        return fn.template operator()<float, kAligned>();
      case DType::kBFloat16:
        return fn.template operator()<BFloat16, kAligned>();
      case DType::kFloat16:
        return fn.template operator()<Float16, kAligned>();
    }
  });
}

}  // namespace splitserve::cuda
