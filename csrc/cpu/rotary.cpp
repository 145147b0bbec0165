// Checks and binding of rotary_embedding.
#include "cpu/rotary.h"

#include "common/check.h"

namespace splitserve {
namespace {

RotaryHeads heads_of(const TensorView& tensor, const char* name, DType dtype, int64_t tokens,
                     int64_t rot_dim) {
  cpu_arg(tensor, name).activation(dtype).rank(3).size(0, tokens).rows_contiguous();
  SPLITSERVE_CHECK_VALUE(tensor.size(2) >= rot_dim,
                         name << ": head size " << tensor.size(2) << " is smaller than rot_dim " << rot_dim);
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.size(1)};
}

void rotary_embedding(TensorView q, TensorView k, TensorView positions, TensorView cos_sin) {
  cpu_arg(cos_sin, "cos_sin").rank(2).type({kFloat32Type}).rows_contiguous();
  RotaryParams params{};
  params.rot_dim = cos_sin.size(1);
  SPLITSERVE_CHECK_VALUE(params.rot_dim % 2 == 0, "cos_sin: rot_dim must be even, got " << params.rot_dim);
  params.dtype = cpu_arg(q, "q").rank(3).activation();
  params.tokens = q.size(0);
  params.q = heads_of(q, "q", params.dtype, params.tokens, params.rot_dim);
  params.k = heads_of(k, "k", params.dtype, params.tokens, params.rot_dim);
  params.positions = cpu_arg(positions, "positions").indices(params.tokens);
  params.cos_sin = static_cast<const float*>(cos_sin.data_ptr());
  params.cos_sin_stride = cos_sin.stride(0);
  for (int64_t token = 0; token < params.tokens; ++token) {
    const int64_t position = params.positions[token];
    SPLITSERVE_CHECK_VALUE(
        position >= 0 && position < cos_sin.size(0),
        "positions: " << position << " is outside cos_sin's " << cos_sin.size(0) << " rows");
  }
  SPLITSERVE_CALL_VECTOR(rotary_embedding, params);
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rotary_embedding, splitserve::rotary_embedding);
