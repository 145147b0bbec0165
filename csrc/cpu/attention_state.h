// The running softmax of some rows: sum of weights and weighted sum of values of what they saw.
#pragma once

#include "cpu/attention_chunk.h"
#include "cpu/slow_pairs.h"
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
    const float from = reference[row];
    reference[row] = to;
    if (from == -__builtin_inff()) return;
    const Vec keep = exp2(broadcast(from - to));
    float* sum = sums + row * kLanes;
    store(sum, load(sum) * keep);
    for (int64_t d = row * width; d < (row + 1) * width; d += kLanes)
      store(values + d, load(values + d) * keep);
  }

  // What a row's values are multiplied with at the end, beside a sink's score in units of log(2); -inf: none.
  float inverse_sum(int64_t row, float sink) const {
    const float sum = sum_lanes(load(sums + row * kLanes));
    if (sink == -__builtin_inff()) return 1.0f / sum;
    const float higher = sink > reference[row] ? sink : reference[row];
    const float keep = exp2(broadcast(reference[row] - higher))[0];
    return keep / (sum * keep + exp2(broadcast(sink - higher))[0]);
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

  static constexpr float kLog2E = 1.44269504f;

  explicit Scoring(const AttentionParams& p)
      : scale(p.softcap > 0.0f ? p.scale : p.scale * kLog2E),
        softcap(p.softcap * kLog2E),
        inverse_softcap(p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f) {}

  // Returns the factor that makes scores of a row's dot products with a chunk. Where a factor alone does not,
  // the scores take the place of the dot products first.
  SPLITSERVE_INLINE float apply(float* dots) const {
    if (softcap == 0.0f) return scale;
    for (int64_t j = 0; j < kChunk; j += kLanes)
      store(dots + j, softcap * tanh(load(dots + j) * scale * inverse_softcap));
    return 1.0f;
  }
};

// How far scores may exceed the row's reference before it is raised: the scale of sums and values changes
// rarely then, and no weight is above 2^kSlack.
inline constexpr float kSlack = 8.0f;

// Puts -inf in place of what a row does not see of a part of a chunk, whatever that is.
SPLITSERVE_INLINE void hide_unseen(Range seen, Range part, float* dots) {
  for (int64_t first = part.begin; first < part.end; first += kLanes) {
    const IntVec j = lane_ids() + static_cast<int32_t>(first);
    const IntVec is_seen = (j >= static_cast<int32_t>(seen.begin)) & (j < static_cast<int32_t>(seen.end));
    store(dots + first, is_seen ? load(dots + first) : broadcast(-__builtin_inff()));
  }
}

// Stores two registers of weights, rounded to the T of the values that they multiply, and adds what is stored
// to `sum`.
template <typename T>
SPLITSERVE_INLINE Vec store_weights(float* to, Vec first, Vec second, Vec sum) {
  first = rounded_to<T>(first), second = rounded_to<T>(second);
  store(to, first);
  store(to + kLanes, second);
  return sum + first + second;
}

#if defined(__AVX512BF16__)
template <typename T>
SPLITSERVE_INLINE Vec store_weights(BFloat16* to, Vec first, Vec second, Vec sum) {
  const __m512bh pairs = _mm512_cvtne2ps_pbh(second, first);
  std::memcpy(to, &pairs, sizeof pairs);
  return _mm512_dpbf16_ps(sum, pairs, reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80)));
}
// The sum is that of pairs here, too.
template <typename T>
  requires kIsSplit<T>
SPLITSERVE_INLINE Vec store_weights(float* to, Vec first, Vec second, Vec sum) {
  BFloat16 pairs[2 * kLanes];
  sum = store_weights<BFloat16>(pairs, first, second, sum);
  store(to, load(pairs));
  store(to + kLanes, load(pairs + kLanes));
  return sum;
}
#elif defined(SPLITSERVE_HAS_BF16_DOT)
template <typename T>
SPLITSERVE_INLINE Vec store_weights(BFloat16* to, Vec first, Vec second, Vec sum) {
  const bfloat16x8_t pairs = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(first), second);
  std::memcpy(to, &pairs, sizeof pairs);
  // GCC 12 takes a constant of ones for one of float16, which is an instruction, but another number.
  uint16x8_t ones = vdupq_n_u16(0x3f80);
  __asm__("" : "+w"(ones));
  return vbfdotq_f32(sum, pairs, vreinterpretq_bf16_u16(ones));
}
#endif

// In place of scales of a chunk's values where they have none.
struct NoScales {
  template <typename T>
  SPLITSERVE_INLINE Vec store(Shared<T>* weights, int64_t j, Vec first, Vec second, Vec sum) const {
    return store_weights<T>(weights + j, first, second, sum);
  }
};

// Those of a chunk's values, [kChunk]; of positions that no row sees they may be anything. A row's weights
// are multiplied with them after they have been added to its sum.
struct ValueScales {
  const float* scales;

  template <typename T>
  SPLITSERVE_INLINE Vec store(Shared<T>* weights, int64_t j, Vec first, Vec second, Vec sum) const {
    store_weights<T>(weights + j, scaled(first, j), scaled(second, j + kLanes), Vec{});
    return sum + first + second;
  }

 private:
  // A weight of zero stays one: of a position that the row does not see the scale may be a NaN.
  SPLITSERVE_INLINE Vec scaled(Vec weight, int64_t j) const {
    return weight > Vec{} ? weight * load(scales + j) : Vec{};
  }
};

template <typename T>
SPLITSERVE_INLINE Vec weight_of(Vec score) {
  return sizeof(T) == sizeof(BFloat16) ? exp2_to_bfloat16(score) : exp2(score);
}

// Turns the dot products of a row with `part` of a chunk, which are whole pairs of registers, into weights
// and adds them to the row's sum, after scaling what the row has summed up so far if need be.
template <typename T, typename Scales>
SPLITSERVE_INLINE void weigh_part(float factor, Range part, const State& state, int64_t row,
                                  const float* dots, Shared<T>* weights, const Scales& scales) {
  Vec highest = load(dots + part.begin);
  for (int64_t j = part.begin + kLanes; j < part.end; j += kLanes) highest = max(highest, load(dots + j));
  highest *= factor;
  if (any_above(highest, state.reference[row] + kSlack)) state.raise(row, max_lanes(highest));
  const Vec reference = broadcast(state.reference[row]);
  const auto weight = [&](int64_t j) __attribute__((always_inline)) {
    return weight_of<T>(fma(load(dots + j), broadcast(factor), -reference));
  };
  Vec sum = load(state.sums + row * kLanes);
  for (int64_t j = part.begin; j < part.end; j += 2 * kLanes)
    sum = scales.template store<T>(weights, j, weight(j), weight(j + kLanes), sum);
  store(state.sums + row * kLanes, sum);
}

// The same with all that the row sees of a chunk, which is some of it; dots and weights are [kChunk]. What it
// does not see has weights of zero.
template <typename T, typename Scales = NoScales>
SPLITSERVE_INLINE void weigh(const Scoring& scoring, Range seen, const State& state, int64_t row, float* dots,
                             Shared<T>* weights, const Scales& scales = {}) {
  const float factor = scoring.apply(dots);
  if (seen.begin == 0 && seen.end == kChunk)
    return weigh_part<T>(factor, {0, kChunk}, state, row, dots, weights, scales);
  constexpr int64_t kPair = 2 * kLanes;
  const Range part{seen.begin / kPair * kPair, round_up(seen.end, kPair)};
  for (int64_t j = 0; j < part.begin; ++j) weights[j] = {};
  for (int64_t j = part.end; j < kChunk; ++j) weights[j] = {};
  hide_unseen(seen, part, dots);
  weigh_part<T>(factor, part, state, row, dots, weights, scales);
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
