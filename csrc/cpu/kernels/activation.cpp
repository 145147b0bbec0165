// SiLU and GELU with and without gate, sums, multiplication by a number, soft caps; fp32 inside.
#include "cpu/gates.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

struct Add {
  static constexpr bool kHasTwoInputs = true;

  static Vec apply(Vec x, Vec y, float) { return x + y; }
};

struct Scale {
  static constexpr bool kHasTwoInputs = false;

  static Vec apply(Vec x, Vec, float factor) { return x * factor; }
};

struct SoftCap {
  static constexpr bool kHasTwoInputs = false;

  static Vec apply(Vec x, Vec, float cap) { return cap * tanh(x / cap); }
};

template <typename T, typename Function>
void rows(const ActivationParams& p) {
  parallel_for(p.tokens, p.tokens * p.size * 4, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const T* x = static_cast<const T*>(p.x) + token * p.x_stride;
      const T* y = static_cast<const T*>(p.y) + token * p.y_stride;
      T* out = static_cast<T*>(p.out) + token * p.out_stride;
      // The next row is fetched meanwhile: the output of a product has left the caches near the core, and the
      // hardware fetches ahead within a page only.
      const bool has_next = token + 1 < end;
      const T *next_x = has_next ? x + p.x_stride : x, *next_y = has_next ? y + p.y_stride : y;
      for (int64_t i = 0; i < p.size; i += kLanes) {
        const int64_t n = p.size - i;
        __builtin_prefetch(next_x + i);
        Vec second{};
        if constexpr (Function::kHasTwoInputs) {
          __builtin_prefetch(next_y + i);
          second = load_up_to(y + i, n);
        }
        store_up_to(out + i, Function::apply(load_up_to(x + i, n), second, p.factor), n);
      }
    }
  });
}

template <typename T>
void dispatch(const ActivationParams& p) {
  switch (p.kind) {
    case Activation::kSiluAndMul:
      return rows<T, SiluAndMul>(p);
    case Activation::kGeluAndMul:
      return rows<T, GeluAndMul<T>>(p);
    case Activation::kGeluTanhAndMul:
      return rows<T, GeluTanhAndMul>(p);
    case Activation::kGelu:
      return rows<T, Gelu<T>>(p);
    case Activation::kGeluTanh:
      return rows<T, GeluTanh>(p);
    case Activation::kAdd:
      return rows<T, Add>(p);
    case Activation::kScale:
      return rows<T, Scale>(p);
    case Activation::kSoftCap:
      return rows<T, SoftCap>(p);
  }
}

}  // namespace

void activation(const ActivationParams& params) {
  if (params.dtype == DType::kBFloat16) {
    dispatch<BFloat16>(params);
  } else {
    dispatch<float>(params);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
