// RMS norm and layer norm: one row per task, statistics in fp32 in a fixed order.
#include <cmath>

#include "cpu/kernels.h"
#include "cpu/norm_row.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <typename T>
T* row_of(const NormRows& rows, int64_t row) {
  return static_cast<T*>(rows.data) + row * rows.stride;
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
    const float sum = sum_lanes(square_row_lanes(x, p.hidden));
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
    const float mean =
        sum_lanes(sum_row_lanes(p.hidden, [x](int64_t i, int64_t n) { return load_up_to(x + i, n); })) / size;
    const float variance = sum_lanes(sum_row_lanes(p.hidden,
                                                   [x, mean](int64_t i, int64_t n) {
                                                     const Vec d = load_up_to(x + i, n) - mean;
                                                     if (n >= kLanes) return d * d;
                                                     // Lanes past the end hold -mean: leave them out.
                                                     Vec square{};
                                                     for (int lane = 0; lane < n; ++lane)
                                                       square[lane] = d[lane] * d[lane];
                                                     return square;
                                                   })) /
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
  parallel_for(p.rows, p.rows * p.hidden, [&p](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = row_of<T>(p.x, row);
      if (p.residual.data != nullptr) {
        T* residual = row_of<T>(p.residual, row);
        add_to_residual(residual, x, p.hidden);
        x = residual;
      }
      Row<T>::apply(row_of<T>(p.out, row), x, p);
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
