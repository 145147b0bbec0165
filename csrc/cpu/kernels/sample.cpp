// Draws one token per row: temperature, then min-p, top-k and top-p, then the Gumbel-max trick.
//
// The trick in its exponential form: with e_i drawn from Exp(1), the token with the least e_i / p_i is a draw
// from p. e_i comes from a hash of (seed, position, token id), so a draw needs no generator state and no
// other row.
#include "cpu/sample.h"

#include "common/logit_rules.h"
#include "common/noise.h"
#include "cpu/parallel.h"
#include "cpu/selection.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// In (0, 1), exact near 0, where the winners are.
SPLITSERVE_INLINE Vec uniform(UintVec bits) { return (__builtin_convertvector(bits, Vec) + 0.5f) * 0x1p-32f; }

// -log(1 - u); the quotient repairs the rounding of 1 - u.
SPLITSERVE_INLINE Vec exponential(Vec u) {
  const Vec rest = max(1.0f - u, broadcast(0x1p-25f));
  const Vec rounded = 1.0f - rest;
  return rounded > Vec{} ? -log(rest) * (u / rounded) : u;
}

inline constexpr float kLog2E = 1.44269504f;

struct Best {
  Vec score = broadcast(__builtin_inff());
  IntVec ids{};

  int32_t token_id() const {
    int best = 0;
    for (int i = 1; i < kLanes; ++i) {
      if (score[i] < score[best] || (score[i] == score[best] && ids[i] < ids[best])) best = i;
    }
    return ids[best];
  }

  // log2 of the score that a token must be below to win, and a little for rounding.
  float limit() const {
    constexpr float kSlack = 0.01f;
    return log(-max_lanes(-score)) * kLog2E + kSlack;
  }
};

// At most log2 of the score of a token: e is never below u, nor u below the power of two in its exponent.
SPLITSERVE_INLINE Vec least_score_log2(Vec u, Vec x) {
  const IntVec exponent = reinterpret_cast<IntVec>(as_uint(u) >> 23) - 127;
  return __builtin_convertvector(exponent, Vec) - x * kLog2E;
}

// Noise and score cost ten times their bound, which is enough for nearly all tokens.
int32_t draw(const Row& row, const Filter& filter, NoiseKey key) {
  Best best;
  float limit = __builtin_inff();
  IntVec ids = lane_ids();
  for (int64_t i = 0; i < row.size; i += kLanes, ids += kLanes) {
    if (row.is_forbidden(i)) continue;
    const Vec logits = row(i), x = filter.x(logits);
    const IntVec passed = filter.keeps(logits, x, ids);
    if (!any(passed)) continue;
    const Vec u = uniform(noise_bits(key, reinterpret_cast<UintVec>(ids)));
    const IntVec kept = passed & (least_score_log2(u, x) < broadcast(limit));
    if (!any(kept)) continue;
    const Vec score = kept ? exponential(u) * exp(-x) : broadcast(__builtin_inff());
    const IntVec better = score < best.score;
    best.score = better ? score : best.score;
    best.ids = better ? ids : best.ids;
    limit = best.limit();
  }
  return best.token_id();
}

Filter make_filter(const SampleParams& p, int64_t r, const Row& row, float max) {
  Filter filter = keep_all(max, p.temperature[r]);
  if (p.min_p[r] > 0.0f) filter.min_x = log(p.min_p[r] < 1.0f ? p.min_p[r] : 1.0f);
  if (p.top_k[r] > 0 && p.top_k[r] < p.vocab) filter.cut = find_top_k(row, filter, p.top_k[r]);
  if (p.top_p[r] < 1.0f) filter.cut = find_top_p(row, filter, p.top_p[r]);
  return filter;
}

Row row_of(const SampleParams& p, int64_t r) {
  const bool has_mask = p.masks != nullptr && p.mask_rows[r] >= 0;
  return {p.logits + r * p.logits_stride, p.vocab,
          has_mask ? p.masks + p.mask_rows[r] * p.masks_stride : nullptr};
}

int32_t sample_row(const SampleParams& p, int64_t r) {
  // Below this the quotient by the temperature may overflow, and only the maximum has any probability.
  constexpr float kMinTemperature = 1e-30f;
  const Row row = row_of(p, r);
  const float highest = highest_logit(row);
  if (highest != highest) return kNotANumber;
  if (highest == -__builtin_inff()) return kNothingLeft;
  const bool is_finite = highest - highest == 0.0f;
  if (!is_finite || !(p.temperature[r] >= kMinTemperature)) return first_with(row, highest);
  const NoiseKey key = noise_key(static_cast<uint64_t>(p.seeds[r]), static_cast<uint64_t>(p.positions[r]));
  return draw(row, make_filter(p, r, row, highest), key);
}

}  // namespace

void sample(const SampleParams& params) {
  parallel_tasks(params.rows, params.rows * params.vocab,
                 [&params](int64_t r) { params.out_token_ids[r] = sample_row(params, r); });
}

}  // namespace splitserve::SPLITSERVE_ISA
