// SiLU and GELU with and without gate, sums, multiplication by a number, soft caps; fp32 inside.
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/rows.cuh"

namespace splitserve::cuda {
namespace {

// 1 / (1 + e^-x). The quick form errs by about 1e-6, far below what a 16-bit result can show, and keeps the
// kernel's arithmetic shorter than its memory traffic.
template <typename T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 2) return __fdividef(1.0f, 1.0f + __expf(-x));
  return 1.0f / (1.0f + expf(-x));
}

struct SiluAndMul {
  static constexpr bool kHasTwoInputs = true;

  template <typename T>
  static __device__ float apply(float gate, float up, float) {
    return gate * sigmoid<T>(gate) * up;
  }
};

// x/2 * erfc(-x/sqrt(2)): unlike 1 + erf it loses nothing for negative x.
struct Gelu {
  static constexpr bool kHasTwoInputs = false;

  template <typename T>
  static __device__ float apply(float x, float, float) {
    return x * 0.5f * erfcf(x * -0.70710678f);
  }
};

// x/2 * (1 + tanh(u)) written as x * sigmoid(2u).
template <typename T>
__device__ float gelu_tanh(float x) {
  const float u = 0.79788456f * (x + 0.044715f * x * x * x);
  return x * sigmoid<T>(u + u);
}

struct GeluTanh {
  static constexpr bool kHasTwoInputs = false;

  template <typename T>
  static __device__ float apply(float x, float, float) {
    return gelu_tanh<T>(x);
  }
};

struct GeluAndMul {
  static constexpr bool kHasTwoInputs = true;

  template <typename T>
  static __device__ float apply(float gate, float up, float factor) {
    return Gelu::apply<T>(gate, up, factor) * up;
  }
};

struct GeluTanhAndMul {
  static constexpr bool kHasTwoInputs = true;

  template <typename T>
  static __device__ float apply(float gate, float up, float) {
    return gelu_tanh<T>(gate) * up;
  }
};

struct Add {
  static constexpr bool kHasTwoInputs = true;

  template <typename T>
  static __device__ float apply(float x, float y, float) {
    return x + y;
  }
};

struct Scale {
  static constexpr bool kHasTwoInputs = false;

  template <typename T>
  static __device__ float apply(float x, float, float factor) {
    return x * factor;
  }
};

struct SoftCap {
  static constexpr bool kHasTwoInputs = false;

  template <typename T>
  static __device__ float apply(float x, float, float cap) {
    return cap * tanhf(x / cap);
  }
};

template <typename T, bool kAligned, typename Function>
__global__ void __launch_bounds__(256) activate(ActivationParams p, uint32_t blocks_per_row) {
  const int64_t token = row_index(blocks_per_row);
  const int size = static_cast<int>(p.size);
  const T* x = static_cast<const T*>(p.x) + token * p.x_stride;
  const T* y = static_cast<const T*>(p.y) + token * p.y_stride;
  T* out = static_cast<T*>(p.out) + token * p.out_stride;
  Chunk first[kChunksPerThread], second[kChunksPerThread];
#pragma unroll
  for (int j = 0; j < kChunksPerThread; ++j) {
    const int begin = chunk_begin<T>(blocks_per_row, j);
    first[j] = load_chunk<kAligned>(x, begin, size);
    if constexpr (Function::kHasTwoInputs) second[j] = load_chunk<kAligned>(y, begin, size);
  }
#pragma unroll
  for (int j = 0; j < kChunksPerThread; ++j) {
    Floats<T> a = unpack<T>(first[j]), b{};
    if constexpr (Function::kHasTwoInputs) b = unpack<T>(second[j]);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      a.values[i] = Function::template apply<T>(a.values[i], b.values[i], p.factor);
    }
    store_chunk<kAligned>(out, chunk_begin<T>(blocks_per_row, j), size, pack<T>(a));
  }
}

template <typename Function>
void activate_rows(const ActivationParams& p, cudaStream_t stream) {
  const int64_t element = dtype_bytes(p.dtype);
  const RowShape shape = row_shape(p.tokens, p.size, element);
  const bool aligned = Alignment()
                           .add(p.out)
                           .add(p.x)
                           .add(p.y)
                           .add_bytes(p.out_stride * element)
                           .add_bytes(p.x_stride * element)
                           .add_bytes(p.y_stride * element)
                           .add_bytes(p.size * element)
                           .is_aligned();
  with_type(p.dtype, aligned, [&]<typename T, bool kAligned>() {
    launch("activation", activate<T, kAligned, Function>, shape.launch, stream, p, shape.blocks_per_row);
  });
}

}  // namespace

void activation(const ActivationParams& params, cudaStream_t stream) {
  switch (params.kind) {
    case Activation::kSiluAndMul:
      return activate_rows<SiluAndMul>(params, stream);
    case Activation::kGeluAndMul:
      return activate_rows<GeluAndMul>(params, stream);
    case Activation::kGeluTanhAndMul:
      return activate_rows<GeluTanhAndMul>(params, stream);
    case Activation::kGelu:
      return activate_rows<Gelu>(params, stream);
    case Activation::kGeluTanh:
      return activate_rows<GeluTanh>(params, stream);
    case Activation::kAdd:
      return activate_rows<Add>(params, stream);
    case Activation::kScale:
      return activate_rows<Scale>(params, stream);
    case Activation::kSoftCap:
      return activate_rows<SoftCap>(params, stream);
  }
}

}  // namespace splitserve::cuda
