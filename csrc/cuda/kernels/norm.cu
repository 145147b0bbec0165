// RMS norm and layer norm: a row stays in the registers of the threads that share it.
//
// Each row is read once and written once. Its threads, and with them the order of every sum, depend on its
// length and dtype alone.
#include "cuda/chunk.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {
namespace {

// Chunks of a row that one thread holds; its loads of them are all in flight at once.
constexpr int kHeld = 4;
// Of a block whose rows take a warp or less each.
constexpr int kSharedThreads = 128;
constexpr int kMaxThreads = 1024;

// The part of a row that one thread holds, as it was loaded: unpacked where it is used, it takes half the
// registers.
using Part = Chunk[kHeld];

template <typename T>
__device__ T* row_of(const NormRows& rows, int64_t row) {
  return static_cast<T*>(rows.data) + row * rows.stride;
}

// First element of the j-th chunk that this thread holds.
template <typename T>
__device__ int begin_of(int j) {
  return static_cast<int>(threadIdx.x + j * blockDim.x) * kChunk<T>;
}

template <bool kAligned, typename T>
__device__ void load_part(const T* row, int size, Part& part) {
#pragma unroll
  for (int j = 0; j < kHeld; ++j) part[j] = load_chunk<kAligned>(row, begin_of<T>(j), size);
}

// residual += x, rounded to its dtype; the norm then takes the rounded values, as the next layer will.
template <bool kAligned, typename T>
__device__ void add_to_residual(T* residual, int size, Part& x) {
  Part sums;
  load_part<kAligned>(residual, size, sums);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    Floats<T> sum = unpack<T>(sums[j]);
    const Floats<T> added = unpack<T>(x[j]);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) sum.values[i] += added.values[i];
    x[j] = pack<T>(sum);
    store_chunk<kAligned>(residual, begin_of<T>(j), size, x[j]);
  }
}

// Sum over a row of fn(element); elements past its end are left out.
template <bool kAligned, typename T, typename Fn>
__device__ float sum_elements(const Part& part, int size, const Fn& fn) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (begin_of<T>(j) >= size) break;
    const Floats<T> x = unpack<T>(part[j]);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (kAligned || begin_of<T>(j) + i < size) sum += fn(x.values[i]);
    }
  }
  return sum_of_row(sum);
}

// What a row's elements are shifted by and multiplied with.
struct Scaling {
  float mean;
  float inverse;
};

struct Rms {
  static constexpr bool kHasBias = false;

  template <bool kAligned, typename T>
  static __device__ Scaling scaling(const Part& part, int size, float eps) {
    const float sum = sum_elements<kAligned, T>(part, size, [](float x) { return x * x; });
    return {0.0f, 1.0f / sqrtf(sum / static_cast<float>(size) + eps)};
  }
};

struct Layer {
  static constexpr bool kHasBias = true;

  template <bool kAligned, typename T>
  static __device__ Scaling scaling(const Part& part, int size, float eps) {
    const float count = static_cast<float>(size);
    const float mean = sum_elements<kAligned, T>(part, size, [](float x) { return x; }) / count;
    const float squares =
        sum_elements<kAligned, T>(part, size, [mean](float x) { return (x - mean) * (x - mean); });
    return {mean, 1.0f / sqrtf(squares / count + eps)};
  }
};

template <typename Norm, bool kAligned, typename T>
__device__ void write_row(T* out, const Part& part, const Part& weights, const NormParams& p,
                          const Scaling& scaling, int size) {
  const T* biases = static_cast<const T*>(p.bias);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    Floats<T> x = unpack<T>(part[j]), bias{};
    const Floats<T> weight = unpack<T>(weights[j]);
    if constexpr (Norm::kHasBias) bias = unpack<T>(load_chunk<kAligned>(biases, begin_of<T>(j), size));
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if constexpr (Norm::kHasBias) {
        x.values[i] = fmaf((x.values[i] - scaling.mean) * scaling.inverse, weight.values[i], bias.values[i]);
      } else {
        x.values[i] = x.values[i] * scaling.inverse * (weight.values[i] + p.offset);
      }
    }
    store_chunk<kAligned>(out, begin_of<T>(j), size, pack<T>(x));
  }
}

// blockDim: threads of a row, rows of a block.
template <typename T, bool kAligned, typename Norm>
__global__ void __launch_bounds__(kMaxThreads) norm_rows(NormParams p) {
  const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  // Threads without a row still take part in the sums of their warp.
  const bool has_row = row < p.rows;
  const int size = has_row ? static_cast<int>(p.hidden) : 0;
  Part x, weights;
  load_part<kAligned>(row_of<const T>(p.x, row), size, x);
  // Early, so that they arrive while the row is summed.
  load_part<kAligned>(static_cast<const T*>(p.weight), size, weights);
  if (p.residual.data != nullptr) add_to_residual<kAligned>(row_of<T>(p.residual, row), size, x);
  const Scaling scaling = Norm::template scaling<kAligned, T>(x, size, p.eps);
  write_row<Norm, kAligned>(row_of<T>(p.out, row), x, weights, p, scaling, size);
}

void add_rows(Alignment* alignment, const NormRows& rows, int64_t element) {
  alignment->add(rows.data).add_bytes(rows.stride * element);
}

bool is_aligned(const NormParams& p) {
  const int64_t element = dtype_bytes(p.dtype);
  Alignment alignment;
  for (const NormRows& rows : {p.out, p.x, p.residual}) add_rows(&alignment, rows, element);
  return alignment.add(p.weight).add(p.bias).add_bytes(p.hidden * element).is_aligned();
}

// Threads of a row: as sum_of_row() wants them, enough for kHeld chunks each.
int threads_of(const NormParams& p) {
  const int64_t chunks = ceil_div(p.hidden * dtype_bytes(p.dtype), 16), needed = ceil_div(chunks, kHeld);
  if (needed > kWarpSize) return static_cast<int>(ceil_div(needed, kWarpSize) * kWarpSize);
  int threads = 1;
  while (threads < needed) threads *= 2;
  return threads;
}

template <typename Norm>
void norm(const char* name, const NormParams& p, cudaStream_t stream) {
  if (p.hidden == 0) return;
  const int threads = threads_of(p), rows = threads > kWarpSize ? 1 : kSharedThreads / threads;
  const LaunchShape shape{ceil_div(p.rows, rows), dim3(threads, rows)};
  with_type(p.dtype, is_aligned(p), [&]<typename T, bool kAligned>() {
    launch(name, norm_rows<T, kAligned, Norm>, shape, stream, p);
  });
}

}  // namespace

void rms_norm(const NormParams& params, cudaStream_t stream) { norm<Rms>("rms_norm", params, stream); }
void layer_norm(const NormParams& params, cudaStream_t stream) { norm<Layer>("layer_norm", params, stream); }

}  // namespace splitserve::cuda
