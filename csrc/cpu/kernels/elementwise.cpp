// Copies, signs, sums and products of tensors of any layout, in float32 and rounded once: the bits of torch.
#include "cpu/elementwise.h"

#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

constexpr int kLast = kElementDims - 1;

SPLITSERVE_INLINE Vec apply(Elementwise kind, Vec x, Vec y) {
  switch (kind) {
    case Elementwise::kCopy:
      return x;
    case Elementwise::kNegate:
      return -x;
    case Elementwise::kAdd:
      return x + y;
    case Elementwise::kSubtract:
      return x - y;
    case Elementwise::kMultiply:
      return x * y;
  }
  return x;
}

// Up to kLanes elements; in each lane the same one if the stride is 0.
template <typename T>
SPLITSERVE_INLINE Vec load_run(const T* x, int64_t stride, int64_t n) {
  if (stride == 1) return load_up_to(x, n);
  if (stride == 0) return broadcast(load_partial(x, 1)[0]);
  T buffer[kLanes] = {};
  for (int64_t i = 0; i < n && i < kLanes; ++i) buffer[i] = x[i * stride];
  return load(buffer);
}

template <typename T>
SPLITSERVE_INLINE void store_run(T* out, int64_t stride, Vec v, int64_t n) {
  if (stride == 1) return store_up_to(out, v, n);
  T buffer[kLanes];
  store(buffer, v);
  for (int64_t i = 0; i < n && i < kLanes; ++i) out[i * stride] = buffer[i];
}

template <typename Out, typename In>
void rows(const ElementwiseParams& p) {
  int64_t count = 1;
  for (int d = 0; d < kLast; ++d) count *= p.sizes[d];
  const int64_t size = p.sizes[kLast];
  parallel_for(count, count * size, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Out* out = static_cast<Out*>(p.out);
      const In *x = static_cast<const In*>(p.x), *y = static_cast<const In*>(p.y);
      int64_t rest = row;
      for (int d = kLast - 1; d >= 0; --d) {
        const int64_t i = rest % p.sizes[d];
        rest /= p.sizes[d];
        out += i * p.out_strides[d];
        x += i * p.x_strides[d];
        if (y != nullptr) y += i * p.y_strides[d];
      }
      for (int64_t i = 0; i < size; i += kLanes) {
        const int64_t n = size - i;
        const Vec first = load_run(x + i * p.x_strides[kLast], p.x_strides[kLast], n);
        const Vec second = y == nullptr ? Vec{} : load_run(y + i * p.y_strides[kLast], p.y_strides[kLast], n);
        store_run(out + i * p.out_strides[kLast], p.out_strides[kLast], apply(p.kind, first, second), n);
      }
    }
  });
}

template <typename Out>
void dispatch(const ElementwiseParams& p) {
  p.dtype == DType::kBFloat16 ? rows<Out, BFloat16>(p) : rows<Out, float>(p);
}

}  // namespace

void elementwise(const ElementwiseParams& params) {
  params.out_dtype == DType::kBFloat16 ? dispatch<BFloat16>(params) : dispatch<float>(params);
}

}  // namespace splitserve::SPLITSERVE_ISA
