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

// The elements of a row as its first pass over them takes them: n from i on, zeros past the end.
template <typename T>
struct Plain {
  const T* x;

  SPLITSERVE_INLINE Vec operator()(int64_t i, int64_t n) const { return load_up_to(x + i, n); }
};

// The same of residual + x, which the residual becomes, rounded to its dtype; the norm takes the rounded
// values, as the next layer will.
template <typename T>
struct Added {
  T* residual;
  const T* x;

  SPLITSERVE_INLINE Vec operator()(int64_t i, int64_t n) const {
    const Vec sum = load_up_to(residual + i, n) + load_up_to(x + i, n);
    store_up_to(residual + i, sum, n);
    return rounded_to<T>(sum);
  }
};

// `first` is called once for each part of the row; after that the row is in x.
template <typename T>
struct RmsRow {
  template <typename First>
  static void apply(T* out, const T* x, const First& first, const NormParams& p) {
    const T* weight = static_cast<const T*>(p.weight);
    const float sum = sum_lanes(sum_squares(p.hidden, first));
    const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(p.hidden) + p.eps);
    const auto write = [&p, out, x, inverse](const auto& factor) {
      each_part(p.hidden, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        store_up_to(out + i, load_up_to(x + i, n) * inverse * factor(i, n), n);
      });
    };
    // Apart, as the addition costs a row in the cache 4%.
    if (p.offset == 0.0f) {
      write([weight](int64_t i, int64_t n) { return load_up_to(weight + i, n); });
    } else {
      write([weight, &p](int64_t i, int64_t n) { return load_up_to(weight + i, n) + p.offset; });
    }
  }
};

template <typename T>
struct LayerRow {
  template <typename First>
  static void apply(T* out, const T* x, const First& first, const NormParams& p) {
    const T* weight = static_cast<const T*>(p.weight);
    const T* bias = static_cast<const T*>(p.bias);
    const float size = static_cast<float>(p.hidden);
    const float mean = sum_lanes(sum_terms(p.hidden, first)) / size;
    const auto square = [x, mean](int64_t i, int64_t n) {
      const Vec d = load_up_to(x + i, n) - mean;
      if (n >= kLanes) return d * d;
      // Lanes past the end hold -mean: leave them out.
      Vec squares{};
      for (int lane = 0; lane < n; ++lane) squares[lane] = d[lane] * d[lane];
      return squares;
    };
    const float variance = sum_lanes(sum_terms(p.hidden, square)) / size;
    const float inverse = 1.0f / std::sqrt(variance + p.eps);
    each_part(p.hidden, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      const Vec normalised = (load_up_to(x + i, n) - mean) * inverse;
      store_up_to(out + i, fma(normalised, load_up_to(weight + i, n), load_up_to(bias + i, n)), n);
    });
  }
};

template <typename T, template <typename> typename Row>
void norm_rows(const NormParams& p) {
  parallel_for(p.rows, p.rows * p.hidden, [&p](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T *out = row_of<T>(p.out, row), *x = row_of<T>(p.x, row);
      if (p.residual.data == nullptr) {
        Row<T>::apply(out, x, Plain<T>{x}, p);
      } else {
        T* residual = row_of<T>(p.residual, row);
        Row<T>::apply(out, residual, Added<T>{residual, x}, p);
      }
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
