// The running softmax of some rows: sum of weights and weighted sum of values of what they saw.
#pragma once

#include "cpu/attention_chunk.h"
#include "cpu/vec_math.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Scores are in units of log(2): weights are powers of two of their distance to a reference, which is the
// highest score so far or at most kSlack below it.
struct State {
  float* reference;  // [rows]; -inf: the row has seen nothing
  float* sums;       // [rows, kLanes], the sum of weights in parts
  float* values;     // [rows, width]
  int64_t width;     // head size, rounded up to whole registers

  static constexpr int64_t floats(int64_t rows, int64_t width) { return rows * (1 + kLanes + width); }

  State(float* buffer, int64_t rows, int64_t width)
      : reference(buffer + rows * (kLanes + width)),
        sums(buffer + rows * width),
        values(buffer),
        width(width) {}

  void clear(int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i) reference[i] = -__builtin_inff();
    std::memset(values, 0, static_cast<size_t>(rows * (kLanes + width)) * sizeof(float));
  }

  // Makes `reference` that of a row.
  [[gnu::noinline]] void raise(int64_t row, float to) const {
    const Vec keep = exp2(broadcast(reference[row] - to));
    reference[row] = to;
    float* sum = sums + row * kLanes;
    store(sum, load(sum) * keep);
    for (int64_t d = row * width; d < (row + 1) * width; d += kLanes)
      store(values + d, load(values + d) * keep);
  }

  // Adds a later state of the same row. A row that saw nothing there is left alone.
  void merge(int64_t row, const State& part) const {
    if (part.reference[row] == -__builtin_inff()) return;
    const float higher = reference[row] > part.reference[row] ? reference[row] : part.reference[row];
    const Vec keep = exp2(broadcast(reference[row] - higher)),
              take = exp2(broadcast(part.reference[row] - higher));
    reference[row] = higher;
    add_scaled(sums + row * kLanes, keep, part.sums + row * kLanes, take);
    for (int64_t d = row * width; d < (row + 1) * width; d += kLanes)
      add_scaled(values + d, keep, part.values + d, take);
  }

 private:
  static void add_scaled(float* total, Vec keep, const float* part, Vec take) {
    store(total, load(total) * keep + load(part) * take);
  }
};

// How dot products become scores.
struct Scoring {
  float scale, softcap, inverse_softcap;  // softcap 0: none

  explicit Scoring(const AttentionParams& p)
      : scale(p.softcap > 0.0f ? p.scale : p.scale * kLog2E),
        softcap(p.softcap * kLog2E),
        inverse_softcap(p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f) {}

  // Returns the factor that makes scores of a row's dot products with a chunk. Where a factor alone does not,
  // scores take the place of the dot products first: -inf for those outside `seen`, whatever they are.
  SPLITSERVE_INLINE float apply(Range seen, float* dots) const {
    const bool sees_all = seen.begin <= 0 && seen.end >= kChunk;
    if (softcap == 0.0f && sees_all) return scale;
    for (int64_t first = 0; first < kChunk; first += kLanes) {
      Vec scores = load(dots + first) * scale;
      if (softcap != 0.0f) scores = softcap * tanh(scores * inverse_softcap);
      const IntVec j = lane_ids() + static_cast<int32_t>(first);
      const IntVec is_seen = (j >= static_cast<int32_t>(seen.begin)) & (j < static_cast<int32_t>(seen.end));
      store(dots + first, is_seen ? scores : broadcast(-__builtin_inff()));
    }
    return 1.0f;
  }

 private:
  static constexpr float kLog2E = 1.44269504f;
};

// How far scores may exceed the row's reference before it is raised: the scale of sums and values changes
// rarely then, and no weight is above 2^kSlack.
inline constexpr float kSlack = 8.0f;

// Raises the reference of a row to the highest of its scores with a chunk where it is too low for them.
SPLITSERVE_INLINE void raise_reference(const float* dots, float factor, int64_t row, const State& state) {
  Vec highest = load(dots) * factor;
  for (int64_t j = kLanes; j < kChunk; j += kLanes) highest = max(highest, load(dots + j) * factor);
  if (any_above(highest, state.reference[row] + kSlack)) state.raise(row, max_lanes(highest));
}

template <typename T>
T one();
template <>
SPLITSERVE_INLINE float one<float>() {
  return 1.0f;
}
template <>
SPLITSERVE_INLINE BFloat16 one<BFloat16>() {
  return {0x3f80};
}

// The sum of a row's weights with a chunk, in the type in which they multiply the values, added to `sum`.
template <typename T>
SPLITSERVE_INLINE Vec add_weights(Vec sum, const T* weights) {
  using Step = DotStep<T>;
  T ones[Step::kPair];
  for (int i = 0; i < Step::kPair; ++i) ones[i] = one<T>();
  for (int64_t j = 0; j < kChunk; j += Step::kSize)
    sum = Step::accumulate(sum, Step::load(weights + j), Step::broadcast(ones));
  return sum;
}

// Turns the dot products of some rows with a chunk, [kRows, kChunk], into weights and adds them to the rows'
// sums, after scaling what the rows have summed up so far if need be. A row that sees nothing of the chunk is
// left alone.
//
// Rows pass each stage together, so that one row's chain of operations hides that of the others.
template <int kRows, typename T>
SPLITSERVE_INLINE void weigh(const Scoring& scoring, const Range* seen, int64_t row, const State& state,
                             float* dots, T* weights) {
  float factor[kRows];
  for (int i = 0; i < kRows; ++i) {
    factor[i] = scoring.apply(seen[i], dots + i * kChunk);
    raise_reference(dots + i * kChunk, factor[i], row + i, state);
  }
  for (int i = 0; i < kRows; ++i) {
    const Vec reference = broadcast(state.reference[row + i]);
    for (int64_t j = 0; j < kChunk; j += kLanes) {
      const Vec distance = fma(load(dots + i * kChunk + j), broadcast(factor[i]), -reference);
      store(weights + i * kChunk + j, exp2(distance));
    }
  }
  for (int i = 0; i < kRows; ++i) {
    if (seen[i].empty()) continue;
    float* sums = state.sums + (row + i) * kLanes;
    store(sums, add_weights(load(sums), weights + i * kChunk));
  }
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
