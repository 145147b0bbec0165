// SiLU with gate, and GELU in its exact and its tanh form; fp32 inside.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/vec_math.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

struct SiluAndMul {
  static constexpr int kInputs = 2;

  template <typename T>
  static Vec apply(const T* x, int64_t n, int64_t size) {
    const Vec gate = load_up_to(x, n);
    return gate * sigmoid(gate) * load_up_to(x + size, n);
  }
};

// x/2 * erfc(-x/sqrt(2)): unlike 1 + erf it loses nothing for negative x.
struct Gelu {
  static constexpr int kInputs = 1;

  template <typename T>
  static Vec apply(const T* p, int64_t n, int64_t) {
    const Vec x = load_up_to(p, n);
    const Vec z = x * 0.70710678f;
    const Vec tail = erfc_positive(z < Vec{} ? -z : z);
    return x * 0.5f * (z < Vec{} ? tail : 2.0f - tail);
  }
};

// x/2 * (1 + tanh(u)) written as x * sigmoid(2u).
struct GeluTanh {
  static constexpr int kInputs = 1;

  template <typename T>
  static Vec apply(const T* p, int64_t n, int64_t) {
    const Vec x = load_up_to(p, n);
    const Vec u = 0.79788456f * (x + 0.044715f * x * x * x);
    return x * sigmoid(u + u);
  }
};

template <typename T, typename Function>
void rows(const ActivationParams& p) {
  parallel_for(p.tokens, p.tokens * p.size * 4, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const T* x = static_cast<const T*>(p.x) + token * p.x_stride;
      T* out = static_cast<T*>(p.out) + token * p.out_stride;
      // The next row is fetched meanwhile: the output of a product has left the caches near the core, and the
      // hardware fetches ahead within a page only.
      const T* next = token + 1 < end ? x + p.x_stride : x;
      for (int64_t i = 0; i < p.size; i += kLanes) {
        for (int input = 0; input < Function::kInputs; ++input) __builtin_prefetch(next + input * p.size + i);
        store_up_to(out + i, Function::apply(x + i, p.size - i, p.size), p.size - i);
      }
    }
  });
}

template <typename T>
void dispatch(const ActivationParams& p) {
  switch (p.kind) {
    case Activation::kSiluAndMul:
      return rows<T, SiluAndMul>(p);
    case Activation::kGelu:
      return rows<T, Gelu>(p);
    case Activation::kGeluTanh:
      return rows<T, GeluTanh>(p);
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
