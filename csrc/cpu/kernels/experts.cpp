// Experts without their products: which of them a token passes, its rows to them, and their weighted sum.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/routing.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

void route_token(const RouteParams& p, int64_t token) {
  const float* logits = p.logits + token * p.logits_stride;
  int32_t* ids = p.ids + token * p.chosen;
  float* weights = p.weights + token * p.chosen;
  choose(logits, p.experts, ids, p.chosen);
  const float largest = logits[ids[0]];
  float sum = 0.0f;
  for (int64_t j = 0; j < p.chosen; ++j) {
    weights[j] = exp(logits[ids[j]] - largest);
    sum += weights[j];
  }
  if (!p.adds_up) sum = sum_of_all(logits, p.experts, largest);
  for (int64_t j = 0; j < p.chosen; ++j) weights[j] /= sum;
}

struct Pairs {
  Vec first, second;
};

// The first n < kLanes pairs of neighbours at x, or kLanes of them; the other lanes hold zeros.
SPLITSERVE_INLINE Pairs load_pairs(const BFloat16* x, int64_t n) {
  UintVec both{};
  std::memcpy(&both, x, n < kLanes ? static_cast<size_t>(n) * 4 : sizeof both);
  return {as_float(both << 16), as_float(both & 0xffff0000u)};
}

SPLITSERVE_INLINE Pairs load_pairs(const float* x, int64_t n) {
  float first[kLanes] = {}, second[kLanes] = {};
  for (int64_t i = 0; i < kLanes && i < n; ++i) {
    first[i] = x[2 * i];
    second[i] = x[2 * i + 1];
  }
  return {load(first), load(second)};
}

template <typename T>
void swiglu_row(const ClampedSwigluParams& p, int64_t row) {
  T* out = static_cast<T*>(p.out) + row * p.out_stride;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  const Vec limit = broadcast(p.limit);
  for (int64_t i = 0; i < p.size; i += kLanes) {
    const Pairs pairs = load_pairs(x + 2 * i, p.size - i);
    // Of a NaN both make a NaN.
    const Vec gate = min(limit, pairs.first), up = max(-limit, min(limit, pairs.second));
    store_up_to(out + i, gate * sigmoid(gate * p.alpha) * (up + 1.0f), p.size - i);
  }
}

// Columns [begin, end) of a token.
template <typename Out>
void combine(const CombineExpertsParams& p, int64_t token, int64_t begin, int64_t end) {
  Out* out = static_cast<Out*>(p.out) + token * p.out_stride;
  const int32_t* places = p.places + token * p.chosen;
  const int32_t first = p.starts[0], last = p.starts[p.experts];
  const float* weights = p.weights + token * p.chosen;
  const float* shared = p.shared == nullptr ? nullptr : p.shared + token * p.shared_stride;
  const Vec gate = p.gate == nullptr ? broadcast(1.0f) : sigmoid(broadcast(p.gate[token]));
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    Vec sum{};
    for (int64_t j = 0; j < p.chosen; ++j) {
      if (places[j] < first || places[j] >= last) continue;
      sum = fma(load_up_to(p.y + places[j] * p.y_stride + i, n), broadcast(weights[j]), sum);
    }
    if (shared != nullptr) sum = fma(load_up_to(shared + i, n), gate, sum);
    store_up_to(out + i, sum, n);
  }
}

}  // namespace

void route(const RouteParams& p) {
  parallel_for(p.tokens, p.tokens * p.experts * 8, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) route_token(p, token);
  });
  sort_slots(p);
}

void spread_rows(const SpreadRowsParams& p) {
  const int32_t first = p.starts[0], last = p.starts[p.experts];
  parallel_for(p.tokens, p.tokens * p.chosen * p.row_bytes / 4, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int32_t* places = p.places + token * p.chosen;
      for (int64_t j = 0; j < p.chosen; ++j) {
        if (places[j] < first || places[j] >= last) continue;
        std::memcpy(p.out + places[j] * p.out_stride, p.x + token * p.x_stride, p.row_bytes);
      }
    }
  });
}

void clamped_swiglu(const ClampedSwigluParams& p) {
  parallel_for(p.rows, p.rows * p.size * 4, [&p](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      p.dtype == DType::kFloat32 ? swiglu_row<float>(p, row) : swiglu_row<BFloat16>(p, row);
    }
  });
}

void combine_experts(const CombineExpertsParams& p) {
  // Several blocks per token, as a step may have one token only.
  constexpr int64_t kBlock = 1024;
  const int64_t blocks = (p.size + kBlock - 1) / kBlock;
  parallel_for(p.tokens * blocks, p.tokens * (p.chosen + 1) * p.size, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % blocks * kBlock, left = p.size - column;
      const int64_t last = column + (left < kBlock ? left : kBlock);
      if (p.out_dtype == DType::kFloat32) {
        combine<float>(p, task / blocks, column, last);
      } else {
        combine<BFloat16>(p, task / blocks, column, last);
      }
    }
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
