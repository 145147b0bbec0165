// Experts without their products: which of them a token passes, its rows to them, and their weighted sum.
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline uint64_t largest_of_warp(uint64_t value) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kWholeWarp, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// A warp per token. All keys of a token differ: below the logit's is that of the expert, the lower one
// larger.
__global__ void __launch_bounds__(kWarpSize) route_tokens(RouteParams p) {
  const int64_t token = blockIdx.x;
  const float* logits = p.logits + token * p.logits_stride;
  int32_t* ids = p.ids + token * p.chosen;
  float* weights = p.weights + token * p.chosen;
  uint64_t last = UINT64_MAX;
  float largest = 0.0f, sum = 0.0f;
  for (int64_t j = 0; j < p.chosen; ++j) {
    uint64_t best = 0;
    for (int64_t expert = threadIdx.x; expert < p.experts; expert += kWarpSize) {
      const uint64_t key = uint64_t{choice_key(logits[expert])} << 32 | ~static_cast<uint32_t>(expert);
      if (key < last && key > best) best = key;
    }
    last = largest_of_warp(best);
    const auto expert = static_cast<int32_t>(~static_cast<uint32_t>(last));
    const float logit = logits[expert];
    if (j == 0) largest = logit;
    const float weight = expf(logit - largest);
    sum += weight;
    if (threadIdx.x == 0) {
      ids[j] = expert;
      weights[j] = weight;
    }
  }
  if (!p.adds_up) {
    sum = 0.0f;
    for (int64_t expert = threadIdx.x; expert < p.experts; expert += kWarpSize) {
      sum += expf(logits[expert] - largest);
    }
    sum = sum_of_row(sum);
  }
  __syncwarp();
  for (int64_t j = threadIdx.x; j < p.chosen; j += kWarpSize) weights[j] /= sum;
}

// A thread block per expert: where its places begin, and which slots get them.
__global__ void __launch_bounds__(kThreads) place_slots_of(RouteParams p) {
  const int expert = static_cast<int>(blockIdx.x);
  const int64_t slots = p.tokens * p.chosen;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize,
            warp = static_cast<int>(threadIdx.x) / kWarpSize;
  __shared__ int counts[kThreads / kWarpSize];
  __shared__ int first;
  if (threadIdx.x == 0) first = 0;
  __syncthreads();
  int before = 0;
  for (int64_t slot = threadIdx.x; slot < slots; slot += kThreads) before += p.ids[slot] < expert;
  atomicAdd(&first, before);
  __syncthreads();
  int place = first;
  if (threadIdx.x == 0) {
    p.starts[expert] = place;
    if (expert == p.experts - 1) p.starts[p.experts] = static_cast<int32_t>(slots);
  }
  for (int64_t begin = 0; begin < slots; begin += kThreads) {
    const int64_t slot = begin + threadIdx.x;
    const bool is_mine = slot < slots && p.ids[slot] == expert;
    const unsigned mine = __ballot_sync(kWholeWarp, is_mine);
    if (lane == 0) counts[warp] = __popc(mine);
    __syncthreads();
    int earlier = __popc(mine & ((1u << lane) - 1)), all = 0;
    for (int i = 0; i < kThreads / kWarpSize; ++i) {
      if (i < warp) earlier += counts[i];
      all += counts[i];
    }
    if (is_mine) p.places[slot] = place + earlier;
    place += all;
    // The counts may still be read.
    __syncthreads();
  }
}

// A thread block copies a stretch of a slot's row. T only has the element's size.
template <typename T>
__global__ void __launch_bounds__(kThreads) spread(SpreadRowsParams p, int64_t blocks_per_row) {
  const int64_t slots = p.tokens * p.chosen, slot = blockIdx.x / blocks_per_row, place = p.places[slot];
  const int64_t i = (blockIdx.x % blocks_per_row) * kThreads + threadIdx.x;
  if (place < 0 || place >= slots || i * static_cast<int64_t>(sizeof(T)) >= p.row_bytes) return;
  if (place < p.starts[0] || place >= p.starts[p.experts]) return;
  const T* x = reinterpret_cast<const T*>(p.x + slot / p.chosen * p.x_stride);
  reinterpret_cast<T*>(p.out + place * p.out_stride)[i] = x[i];
}

template <typename T>
void run_spread(const SpreadRowsParams& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.row_bytes, kThreads * static_cast<int64_t>(sizeof(T)));
  launch("spread_rows", spread<T>, {p.tokens * p.chosen * blocks, kThreads}, stream, p, blocks);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) combine(CombineExpertsParams p, int64_t blocks_per_row) {
  const int64_t token = blockIdx.x / blocks_per_row, slots = p.tokens * p.chosen;
  const int64_t i = (blockIdx.x % blocks_per_row) * kThreads + threadIdx.x;
  if (i >= p.size) return;
  const int64_t first = p.starts[0], last = p.starts[p.experts];
  float sum = 0.0f;
  for (int64_t j = 0; j < p.chosen; ++j) {
    const int64_t place = p.places[token * p.chosen + j];
    const bool exists = place >= 0 && place < slots;
    if (exists && (place < first || place >= last)) continue;
    const float y = exists ? p.y[place * p.y_stride + i] : NAN;
    sum = fmaf(y, p.weights[token * p.chosen + j], sum);
  }
  if (p.shared != nullptr) {
    const float gate = p.gate == nullptr ? 1.0f : 1.0f / (1.0f + expf(-p.gate[token]));
    sum = fmaf(p.shared[token * p.shared_stride + i], gate, sum);
  }
  static_cast<T*>(p.out)[token * p.out_stride + i] = to<T>(sum);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) swiglu(ClampedSwigluParams p, int64_t blocks_per_row) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t i = (blockIdx.x % blocks_per_row) * kThreads + threadIdx.x;
  if (i >= p.size) return;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride + 2 * i;
  float gate = to_float(x[0]), up = to_float(x[1]);
  // Written so that a NaN stays one.
  gate = gate > p.limit ? p.limit : gate;
  up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
  const float result = gate / (1.0f + expf(-p.alpha * gate)) * (up + 1.0f);
  static_cast<T*>(p.out)[row * p.out_stride + i] = to<T>(result);
}

}  // namespace

void route(const RouteParams& p, cudaStream_t stream) {
  launch("route", route_tokens, {p.tokens, kWarpSize}, stream, p);
  place_slots(p, stream);
}

void place_slots(const RouteParams& p, cudaStream_t stream) {
  launch("route", place_slots_of, {p.experts, kThreads}, stream, p);
}

void spread_rows(const SpreadRowsParams& p, cudaStream_t stream) {
  const auto address = reinterpret_cast<intptr_t>(p.out) | reinterpret_cast<intptr_t>(p.x);
  const bool has_words = (address | p.out_stride | p.x_stride | p.row_bytes) % 4 == 0;
  has_words ? run_spread<uint32_t>(p, stream) : run_spread<uint16_t>(p, stream);
}

void combine_experts(const CombineExpertsParams& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.size, kThreads);
  with_type(p.out_dtype, false, [&]<typename T, bool kAligned>() {
    launch("combine_experts", combine<T>, {p.tokens * blocks, kThreads}, stream, p, blocks);
  });
}

void clamped_swiglu(const ClampedSwigluParams& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.size, kThreads);
  with_type(p.dtype, false, [&]<typename T, bool kAligned>() {
    launch("clamped_swiglu", swiglu<T>, {p.rows * blocks, kThreads}, stream, p, blocks);
  });
}

}  // namespace splitserve::cuda
