// Checks and binding of lora.
#include "common/lora.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

// Where the host sees them.
[[maybe_unused]] void check_slots(const LoraParams& p) {
  for (int64_t i = 0; i < p.rows; ++i) {
    SPLITSERVE_CHECK_VALUE(p.slots[i] >= -1 && p.slots[i] < p.adapters,
                           "slots: " << p.slots[i] << " is not below " << p.adapters);
  }
  for (int64_t i = 0; i < p.adapters; ++i) {
    SPLITSERVE_CHECK_VALUE(p.ranks[i] >= 0 && p.ranks[i] <= p.rank,
                           "ranks: expected 0 to " << p.rank << ", got " << p.ranks[i]);
  }
}

void check_weights(const DeviceArgs& args, const TensorView& a, const TensorView& b, LoraParams& params) {
  const int64_t pair = kPairedAdapters && params.dtype == DType::kBFloat16 ? 2 : 1;
  args(a, "a").activation(params.dtype).rank(4).size(1, (params.depth + pair - 1) / pair).size(3, pair);
  params.adapters = a.size(0);
  params.rank = a.size(2);
  SPLITSERVE_CHECK_VALUE(params.adapters >= 1 && params.adapters <= kMaxAdapters,
                         "a: expected 1 to " << kMaxAdapters << " adapters, got " << params.adapters);
  SPLITSERVE_CHECK_VALUE(params.rank >= 16 && params.rank <= 256 && params.rank % 16 == 0,
                         "a: expected a multiple of 16 up to 256, got a rank of " << params.rank);
  const int64_t panels = (params.cols + kLoraCols - 1) / kLoraCols;
  args(b, "b").activation(params.dtype).rank(5).size(0, params.adapters).size(1, panels);
  args(b, "b").size(2, params.rank / pair).size(3, kLoraCols).size(4, pair);
  const bool a_dense = (pair < 2 || a.stride(3) == 1) && a.stride(2) == pair &&
                       (a.size(1) < 2 || a.stride(1) == params.rank * pair);
  SPLITSERVE_CHECK_VALUE(a_dense, "a: an adapter's matrix must be contiguous");
  const int64_t panel = params.rank * kLoraCols;
  const bool b_dense = (pair < 2 || b.stride(4) == 1) && b.stride(3) == pair &&
                       b.stride(2) == kLoraCols * pair && (panels < 2 || b.stride(1) == panel);
  SPLITSERVE_CHECK_VALUE(b_dense, "b: an adapter's matrix must be contiguous");
  params.a_stride = a.stride(0);
  params.b_stride = b.stride(0);
}

void lora(TensorView out, TensorView x, TensorView a, TensorView b, TensorView scales, TensorView ranks,
          TensorView slots, TensorView order, TensorView inner) {
  const DeviceArgs args(x, "x");
  LoraParams params{};
  params.dtype = args(x, "x").rank(2).rows_contiguous().activation();
  params.rows = x.size(0);
  params.depth = x.size(1);
  params.out_dtype = args(out, "out").rank(2).size(0, params.rows).rows_contiguous().activation();
  if (params.out_dtype != DType::kFloat32 && params.out_dtype != params.dtype) {
    TVM_FFI_THROW(TypeError) << "out: expected the dtype of x or float32";
  }
  params.cols = out.size(1);
  check_weights(args, a, b, params);
  params.scales = args(scales, "scales").vector(kFloat32Type, params.adapters).data<const float>();
  params.ranks = args(ranks, "ranks").vector(kInt32Type, params.adapters).data<const int32_t>();
  params.slots = args(slots, "slots").vector(kInt32Type, params.rows).data<const int32_t>();
  params.order = args(order, "order").vector(kInt32Type, params.rows).data<int32_t>();
  args(inner, "inner").type({kFloat32Type}).rank(2).size(0, params.rows).size(1, params.rank);
  SPLITSERVE_CHECK_VALUE(inner.IsContiguous(), "inner: must be contiguous");
  params.inner = static_cast<float*>(inner.data_ptr());
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.a = a.data_ptr();
  params.b = b.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  SPLITSERVE_RUN_CHECKED(lora, check_slots, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(lora, splitserve::lora);
