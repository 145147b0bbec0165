// The running softmax of some rows: maximum, sum of weights and weighted sum of values of what they saw.
#pragma once

#include "cpu/attention_chunk.h"
#include "cpu/vec_math.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Scores are in units of log(2): weights are powers of two of their distance to the maximum.
struct State {
  float* max;     // [rows]; -inf: the row has seen nothing
  float* sums;    // [rows, kLanes], the sum of weights in parts
  float* values;  // [rows, width]
  int64_t width;  // head size, rounded up to whole registers

  static constexpr int64_t floats(int64_t rows, int64_t width) { return rows * (1 + kLanes + width); }

  State(float* buffer, int64_t rows, int64_t width)
      : max(buffer + rows * (kLanes + width)), sums(buffer + rows * width), values(buffer), width(width) {}

  void clear(int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i) max[i] = -__builtin_inff();
    std::memset(values, 0, static_cast<size_t>(rows * (kLanes + width)) * sizeof(float));
  }

  // Adds a later state of the same row. A row that saw nothing there is left alone.
  void merge(int64_t row, const State& part) const {
    if (part.max[row] == -__builtin_inff()) return;
    const float new_max = max[row] > part.max[row] ? max[row] : part.max[row];
    const Vec keep = exp2(broadcast(max[row] - new_max)), take = exp2(broadcast(part.max[row] - new_max));
    max[row] = new_max;
    add_scaled(sums + row * kLanes, keep, part.sums + row * kLanes, take);
    for (int64_t d = row * width; d < (row + 1) * width; d += kLanes)
      add_scaled(values + d, keep, part.values + d, take);
  }

 private:
  static void add_scaled(float* total, Vec keep, const float* part, Vec take) {
    store(total, load(total) * keep + load(part) * take);
  }
};

// Rounds weights to the type they are multiplied in; returns what they have become.
SPLITSERVE_INLINE Vec store_weights(float* to, Vec weights) {
  store(to, weights);
  return weights;
}

SPLITSERVE_INLINE Vec store_weights(BFloat16* to, Vec weights) {
#if defined(__AVX512BF16__)
  const HalfVec half = reinterpret_cast<HalfVec>(_mm512_cvtneps_pbh(weights));
#else
  const HalfVec half = to_bfloat16(weights);
#endif
  std::memcpy(to, &half, sizeof half);
  return as_float(__builtin_convertvector(half, UintVec) << 16);
}

// How dot products become scores.
struct Scoring {
  float scale, softcap, inverse_softcap;  // softcap 0: none

  explicit Scoring(const AttentionParams& p)
      : scale(p.softcap > 0.0f ? p.scale : p.scale * kLog2E),
        softcap(p.softcap * kLog2E),
        inverse_softcap(p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f) {}

  template <int kVecs>
  SPLITSERVE_INLINE void apply(const float* dots, Vec* scores) const {
    for (int v = 0; v < kVecs; ++v) scores[v] = load(dots + v * kLanes) * scale;
    if (softcap == 0.0f) return;
    for (int v = 0; v < kVecs; ++v) scores[v] = softcap * tanh(scores[v] * inverse_softcap);
  }

 private:
  static constexpr float kLog2E = 1.44269504f;
};

template <int kVecs>
SPLITSERVE_INLINE void hide(Range seen, Vec* scores) {
  for (int v = 0; v < kVecs; ++v) {
    const IntVec j = lane_ids() + v * kLanes;
    const IntVec is_seen = (j >= static_cast<int32_t>(seen.begin)) & (j < static_cast<int32_t>(seen.end));
    scores[v] = is_seen ? scores[v] : broadcast(-__builtin_inff());
  }
}

// Turns a row's dot products with a chunk into weights and adds them to its sum; those outside `seen` become
// 0, whatever their dot products are. Returns what remains of the sums so far under the new maximum.
template <typename T>
SPLITSERVE_INLINE float weigh(const Scoring& scoring, Range seen, int64_t row, const State& state,
                              const float* dots, T* weights) {
  constexpr int kVecs = kChunk / kLanes;
  Vec scores[kVecs], highest = broadcast(-__builtin_inff());
  scoring.apply<kVecs>(dots, scores);
  if (seen.begin > 0 || seen.end < kChunk) hide<kVecs>(seen, scores);
  for (int v = 0; v < kVecs; ++v) highest = max(highest, scores[v]);
  const float old_max = state.max[row], chunk_max = max_lanes(highest);
  const float new_max = old_max > chunk_max ? old_max : chunk_max;
  const float keep = old_max == new_max ? 1.0f : exp2(broadcast(old_max - new_max))[0];
  Vec sum = load(state.sums + row * kLanes) * keep;
  for (int v = 0; v < kVecs; ++v) sum = sum + store_weights(weights + v * kLanes, exp2(scores[v] - new_max));
  store(state.sums + row * kLanes, sum);
  state.max[row] = new_max;
  return keep;
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
