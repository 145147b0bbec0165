// Rotary position embedding, half-rotation form: element i turns with element i + rot_dim / 2.
#include "common/rotate.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <typename T>
SPLITSERVE_INLINE void rotate_head(T* head, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i;
    const Vec c = load_up_to(cosines + i, n), s = load_up_to(sines + i, n);
    const Vec x = load_up_to(head + i, n), y = load_up_to(head + half + i, n);
    const auto [turned_x, turned_y] = splitserve::rotate(x, y, c, s);
    store_up_to(head + i, turned_x, n);
    store_up_to(head + half + i, turned_y, n);
  }
}

template <typename T>
void rotate_token(const RotaryHeads& heads, int64_t token, const float* cos_sin, int64_t half) {
  T* row = static_cast<T*>(heads.data) + token * heads.token_stride;
  for (int64_t h = 0; h < heads.heads; ++h)
    rotate_head(row + h * heads.head_stride, cos_sin, cos_sin + half, half);
}

template <typename T>
void rotate(const RotaryParams& p) {
  const int64_t work = p.tokens * (p.q.heads + p.k.heads) * p.rot_dim;
  parallel_for(p.tokens, work, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float* cos_sin = p.cos_sin + p.positions[token] * p.cos_sin_stride;
      rotate_token<T>(p.q, token, cos_sin, p.rot_dim / 2);
      rotate_token<T>(p.k, token, cos_sin, p.rot_dim / 2);
    }
  });
}

}  // namespace

void rotary_embedding(const RotaryParams& params) {
  if (params.dtype == DType::kBFloat16) {
    rotate<BFloat16>(params);
  } else {
    rotate<float>(params);
  }
}

void rotary_kv_write(const RotaryKvWriteParams& params) {
  rotary_embedding(params.rotary);
  kv_write(params.write);
}

}  // namespace splitserve::SPLITSERVE_ISA
