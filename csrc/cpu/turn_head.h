// Queries or keys of one token on their way from the projection to the scores: RMS norm, if there is one, and
// rotary position embedding in its half-rotation form, in which element i turns with element i + rot_dim / 2.
#pragma once

#include "common/rotate.h"
#include "cpu/norm_row.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <typename T>
struct HeadTurn {
  T* data;         // the first head
  int64_t stride;  // from one head to the next
  int64_t size;    // of a head
  int64_t half;    // of its elements that turn
  const float* cosines;
  const float* sines;
  const T* norm;  // weights; nullptr: no norm
  float eps;
  float norm_offset;  // added to the weights
};

// kHeads at once: one's root and quotient are not waited for, angles and weights are loaded once. kWhole: a
// half consists of whole registers.
template <bool kWhole, bool kNorm, int kHeads, typename T>
SPLITSERVE_INLINE void turn_group(const HeadTurn<T>& turn, T* first) {
  T* heads[4];
  for (int h = 0; h < 4; ++h) heads[h] = first + (h < kHeads ? h : 0) * turn.stride;
  Vec factors[4];
  if constexpr (kNorm) {
    const Quad inverse = inverse_rms(heads, turn.size, turn.eps);
    for (int h = 0; h < kHeads; ++h) factors[h] = broadcast(inverse[h]);
  }
  // Rounded between norm and rotation, as in training, where they are apart.
  const auto element = [&heads, &factors](int h, int64_t i, int64_t n, Vec weight) {
    const Vec x = load_up_to(heads[h] + i, n);
    return kNorm ? rounded_to<T>(x * factors[h] * weight) : x;
  };
  const auto weight_at = [&turn](int64_t i, int64_t n) {
    return kNorm ? load_up_to(turn.norm + i, n) + turn.norm_offset : Vec{};
  };
  for (int64_t i = 0; i < turn.half; i += kLanes) {
    const int64_t n = kWhole ? kLanes : turn.half - i, j = turn.half + i;
    const Vec cosine = load_up_to(turn.cosines + i, n), sine = load_up_to(turn.sines + i, n);
    const Vec weight_x = weight_at(i, n), weight_y = weight_at(j, n);
    for (int h = 0; h < kHeads; ++h) {
      const auto [x, y] =
          splitserve::rotate(element(h, i, n, weight_x), element(h, j, n, weight_y), cosine, sine);
      store_up_to(heads[h] + i, x, n);
      store_up_to(heads[h] + j, y, n);
    }
  }
  for (int64_t i = 2 * turn.half; kNorm && i < turn.size; i += kLanes) {
    const int64_t n = turn.size - i;
    const Vec weight = weight_at(i, n);
    for (int h = 0; h < kHeads; ++h) store_up_to(heads[h] + i, element(h, i, n, weight), n);
  }
}

template <bool kWhole, bool kNorm, typename T>
void turn_all(const HeadTurn<T>& turn, int64_t heads) {
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4) turn_group<kWhole, kNorm, 4>(turn, turn.data + h * turn.stride);
  for (; h < heads; ++h) turn_group<kWhole, kNorm, 1>(turn, turn.data + h * turn.stride);
}

template <typename T>
void turn_heads(const HeadTurn<T>& turn, int64_t heads) {
  const bool is_whole = turn.half % kLanes == 0;
  if (turn.norm != nullptr)
    return is_whole ? turn_all<true, true>(turn, heads) : turn_all<false, true>(turn, heads);
  return is_whole ? turn_all<true, false>(turn, heads) : turn_all<false, false>(turn, heads);
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
