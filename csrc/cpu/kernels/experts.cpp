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

// Some columns of a token.
struct Piece {
  int64_t token, begin, end;
};

template <typename Out>
class Combination {
 public:
  explicit Combination(const CombineExpertsParams& params)
      : p(params), first(params.starts[0]), last(params.starts[params.experts]) {}

  // The rows of `next` are fetched meanwhile: they may be anywhere, and the hardware fetches ahead within a
  // page only.
  void write(const Piece& piece, const Piece& next) const {
    constexpr int kVecs = 4;
    const int64_t ahead = next.begin - piece.begin;
    int64_t i = piece.begin;
    for (; i + kVecs * kLanes <= piece.end; i += kVecs * kLanes)
      add_up<kVecs>(piece, i, p.places + next.token * p.chosen, i + ahead);
    for (; i < piece.end; i += kLanes) add_up<1>(piece, i, p.places + next.token * p.chosen, i + ahead);
  }

 private:
  // Registers of columns from i on.
  template <int kVecs>
  SPLITSERVE_INLINE void add_up(const Piece& piece, int64_t i, const int32_t* next_places,
                                int64_t next_i) const {
    const int32_t* places = p.places + piece.token * p.chosen;
    const float* weights = p.weights + piece.token * p.chosen;
    Vec sums[kVecs] = {};
    for (int64_t j = 0; j < p.chosen; ++j) {
      const float* next = p.y + next_places[j] * p.y_stride + next_i;
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) __builtin_prefetch(next + v * kLanes);
      if (places[j] < first || places[j] >= last) continue;
      add(sums, p.y + places[j] * p.y_stride, broadcast(weights[j]), i, piece.end);
    }
    if (p.shared != nullptr) {
      const Vec gate = p.gate == nullptr ? broadcast(1.0f) : sigmoid(broadcast(p.gate[piece.token]));
      add(sums, p.shared + piece.token * p.shared_stride, gate, i, piece.end);
    }
    Out* out = static_cast<Out*>(p.out) + piece.token * p.out_stride;
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v, i += kLanes) store_up_to(out + i, sums[v], piece.end - i);
  }

  template <int kVecs>
  SPLITSERVE_INLINE static void add(Vec (&sums)[kVecs], const float* row, Vec weight, int64_t i,
                                    int64_t end) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v, i += kLanes) sums[v] = fma(load_up_to(row + i, end - i), weight, sums[v]);
  }

  const CombineExpertsParams& p;
  const int64_t first, last;  // places of the routing's experts
};

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
  const auto piece_of = [&p, blocks](int64_t task) {
    const int64_t begin = task % blocks * kBlock, left = p.size - begin;
    return Piece{task / blocks, begin, begin + (left < kBlock ? left : kBlock)};
  };
  parallel_for(p.tokens * blocks, p.tokens * (p.chosen + 1) * p.size, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const Piece piece = piece_of(task), next = piece_of(task + 1 < end ? task + 1 : task);
      if (p.out_dtype == DType::kFloat32) {
        Combination<float>(p).write(piece, next);
      } else {
        Combination<BFloat16>(p).write(piece, next);
      }
    }
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
