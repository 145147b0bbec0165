// Checks and binding of elementwise.
#include "cpu/elementwise.h"

#include <string_view>

#include "common/check.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

Elementwise elementwise_of(const tvm::ffi::String& name) {
  constexpr std::string_view kNames[] = {"copy", "neg", "add", "sub", "mul"};
  for (int i = 0; i < 5; ++i) {
    if (std::string_view(name.data(), name.size()) == kNames[i]) return static_cast<Elementwise>(i);
  }
  TVM_FFI_THROW(ValueError) << "kind: expected copy, neg, add, sub or mul, got '" << name << "'";
}

// `tensor` has the sizes of `like`, or 1 where it is repeated, in its last dimensions.
void set_strides(int64_t (&strides)[kElementDims], const TensorView& tensor, const char* name,
                 const TensorView& like) {
  SPLITSERVE_CHECK_VALUE(tensor.ndim() <= like.ndim(), name << ": has more dimensions than out");
  for (int d = 1; d <= tensor.ndim(); ++d) {
    const int64_t size = tensor.size(-d), wanted = like.size(-d);
    SPLITSERVE_CHECK_VALUE(size == wanted || size == 1, name << ": expected size " << wanted << " or 1, got "
                                                             << size << " in dimension " << -d);
    strides[kElementDims - d] = size == 1 ? 0 : tensor.stride(-d);
  }
}

void elementwise(const tvm::ffi::String& kind, TensorView out, TensorView x, Optional<TensorView> y) {
  ElementwiseParams params{};
  params.kind = elementwise_of(kind);
  params.out_dtype = cpu_arg(out, "out").activation();
  params.dtype = cpu_arg(x, "x").activation();
  SPLITSERVE_CHECK_VALUE(out.ndim() <= kElementDims,
                         "out: expected at most " << kElementDims << " dimensions, got " << out.ndim());
  for (int64_t& size : params.sizes) size = 1;
  for (int d = 1; d <= out.ndim(); ++d) params.sizes[kElementDims - d] = out.size(-d);
  set_strides(params.out_strides, out, "out", out);
  set_strides(params.x_strides, x, "x", out);
  const bool takes_two = params.kind != Elementwise::kCopy && params.kind != Elementwise::kNegate;
  SPLITSERVE_CHECK_VALUE(takes_two == y.has_value(), "y: belongs to sums and products");
  if (y.has_value()) {
    const TensorView view = *y;
    cpu_arg(view, "y").activation(params.dtype);
    set_strides(params.y_strides, view, "y", out);
    params.y = view.data_ptr();
  }
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  SPLITSERVE_RUN_KERNEL(elementwise, params);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(elementwise, splitserve::elementwise);
