// Checks and binding of gated_linear.
#include <string_view>

#include "common/experts.h"
#include "cpu/device.h"
#include "cpu/linear_args.h"
#include "cpu/packed.h"

namespace splitserve {
namespace {

Activation gate_of(const tvm::ffi::String& name) {
  const std::string_view wanted(name.data(), name.size());
  if (wanted == "silu") return Activation::kSiluAndMul;
  if (wanted == "gelu") return Activation::kGeluAndMul;
  if (wanted == "gelu_tanh") return Activation::kGeluTanhAndMul;
  TVM_FFI_THROW(ValueError) << "activation: expected silu, gelu or gelu_tanh, got '" << name << "'";
}

void check_gated_starts(const GatedLinearParams& p) { check_starts(p.products); }

void gated_linear(TensorView out, TensorView x, TensorView weight, Optional<TensorView> scales,
                  Optional<TensorView> starts, int64_t cols, int64_t depth, Optional<TensorView> bias,
                  const tvm::ffi::String& activation) {
  GatedLinearParams params{};
  params.kind = gate_of(activation);
  SPLITSERVE_CHECK_VALUE(cols % (2 * kPanelCols) == 0,
                         "weight: expected a multiple of " << 2 * kPanelCols << " outputs, got " << cols);
  ExpertLinearParams& products = params.products;
  products.experts = 1;
  if (starts.has_value()) set_starts(&products, *starts);
  LinearParams& p = products.linear;
  set_product(&p, x, weight, scales, bias, cols, depth, products.experts);
  p.out_dtype = activation_of(p.format);
  cpu_arg(out, "out").activation(p.out_dtype).rank(2).size(0, p.rows).size(1, cols / 2).rows_contiguous();
  params.out = out.data_ptr();
  params.out_stride = out.stride(0);
  SPLITSERVE_RUN_CHECKED(gated_linear, check_gated_starts, params, x.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(gated_linear, splitserve::gated_linear);
