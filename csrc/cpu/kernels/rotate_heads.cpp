// Rotary position embedding of queries or keys in place, all heads of a token at a time.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/turn_head.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <typename T>
void rotate(const RotateHeadsParams& p) {
  parallel_for(p.tokens, p.tokens * p.x.heads * p.head_dim, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float* cosines = p.cos_sin + p.positions[token] * p.cos_sin_stride;
      const int64_t half = p.rot_dim / 2;
      T* heads = static_cast<T*>(p.x.data) + token * p.x.token_stride;
      turn_heads<T>({heads, p.x.head_stride, p.head_dim, half, cosines, cosines + half, nullptr, 0.0f, 0.0f},
                    p.x.heads);
    }
  });
}

}  // namespace

void rotate_heads(const RotateHeadsParams& params) {
  if (params.dtype == DType::kBFloat16) {
    rotate<BFloat16>(params);
  } else {
    rotate<float>(params);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
