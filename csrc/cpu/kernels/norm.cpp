// RMS norm and layer norm: one row per task, statistics in fp32 in a fixed order.
#include <cmath>

#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Sum over a row of term(i, n), where n is the number of elements left at i. Four running sums hide the
// latency of the addition; the order depends on the row's length alone.
template <typename Term>
SPLITSERVE_INLINE float sum_row(int64_t size, const Term& term) {
  Vec sum0{}, sum1{}, sum2{}, sum3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    sum0 = sum0 + term(i, size - i);
    sum1 = sum1 + term(i + kLanes, size - i);
    sum2 = sum2 + term(i + 2 * kLanes, size - i);
    sum3 = sum3 + term(i + 3 * kLanes, size - i);
  }
  for (; i < size; i += kLanes) sum0 = sum0 + term(i, size - i);
  return sum_lanes((sum0 + sum1) + (sum2 + sum3));
}

template <typename T>
T* row_of(const NormRows& rows, int64_t outer, int64_t inner) {
  return static_cast<T*>(rows.data) + outer * rows.outer_stride + inner * rows.inner_stride;
}

// residual += x, rounded to its dtype; the norm then reads the rounded values, as the next layer will.
template <typename T>
void add_to_residual(T* residual, const T* x, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    store_up_to(residual + i, load_up_to(residual + i, size - i) + load_up_to(x + i, size - i), size - i);
  }
}

template <typename T>
struct RmsRow {
  static void apply(T* out, const T* x, const NormParams& p) {
    const T* weight = static_cast<const T*>(p.weight);
    const float sum = sum_row(p.hidden, [x](int64_t i, int64_t n) {
      const Vec v = load_up_to(x + i, n);
      return v * v;
    });
    const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(p.hidden) + p.eps);
    for (int64_t i = 0; i < p.hidden; i += kLanes) {
      const int64_t n = p.hidden - i;
      store_up_to(out + i, load_up_to(x + i, n) * inverse * load_up_to(weight + i, n), n);
    }
  }
};

template <typename T>
struct LayerRow {
  static void apply(T* out, const T* x, const NormParams& p) {
    const T* weight = static_cast<const T*>(p.weight);
    const T* bias = static_cast<const T*>(p.bias);
    const float size = static_cast<float>(p.hidden);
    const float mean = sum_row(p.hidden, [x](int64_t i, int64_t n) { return load_up_to(x + i, n); }) / size;
    const float variance = sum_row(p.hidden,
                                   [x, mean](int64_t i, int64_t n) {
                                     const Vec d = load_up_to(x + i, n) - mean;
                                     if (n >= kLanes) return d * d;
                                     // Lanes past the end hold -mean: leave them out.
                                     Vec square{};
                                     for (int lane = 0; lane < n; ++lane) square[lane] = d[lane] * d[lane];
                                     return square;
                                   }) /
                           size;
    const float inverse = 1.0f / std::sqrt(variance + p.eps);
    for (int64_t i = 0; i < p.hidden; i += kLanes) {
      const int64_t n = p.hidden - i;
      const Vec normalised = (load_up_to(x + i, n) - mean) * inverse;
      store_up_to(out + i, fma(normalised, load_up_to(weight + i, n), load_up_to(bias + i, n)), n);
    }
  }
};

template <typename T, template <typename> typename Row>
void norm_rows(const NormParams& p) {
  parallel_for(p.outer * p.inner, p.outer * p.inner * p.hidden, [&p](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t outer = row / p.inner, inner = row % p.inner;
      const T* x = row_of<T>(p.x, outer, inner);
      if (p.residual.data != nullptr) {
        T* residual = row_of<T>(p.residual, outer, inner);
        add_to_residual(residual, x, p.hidden);
        x = residual;
      }
      Row<T>::apply(row_of<T>(p.out, outer, inner), x, p);
    }
  });
}

template <template <typename> typename Row>
void norm(const NormParams& p) {
  if (p.dtype == DType::kBFloat16) {
    norm_rows<BFloat16, Row>(p);
  } else {
    norm_rows<float, Row>(p);
  }
}

}  // namespace

void rms_norm(const NormParams& params) { norm<RmsRow>(params); }
void layer_norm(const NormParams& params) { norm<LayerRow>(params); }

}  // namespace splitserve::SPLITSERVE_ISA
