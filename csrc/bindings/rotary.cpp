// Binding of rotary_embedding.
#include "bindings/rotary_args.h"

namespace splitserve {
namespace {

void rotary_embedding(TensorView q, TensorView k, TensorView positions, TensorView cos_sin) {
  const DeviceArgs args(q, "q");
  const RotaryParams params = rotary_params(args, q, k, positions, cos_sin);
  SPLITSERVE_RUN_CHECKED(rotary_embedding, check_positions, params, args.device());
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rotary_embedding, splitserve::rotary_embedding);
