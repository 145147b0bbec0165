// Draws one token per row: temperature, then min-p, top-k and top-p, then the Gumbel-max trick.
//
// The trick in its exponential form: with e_i drawn from Exp(1), the token with the least e_i / p_i is a draw
// from p. e_i comes from a hash of (seed, position, token id), so a draw needs no generator state and no
// other row.
#include "cpu/sample.h"

#include "common/noise.h"
#include "cpu/parallel.h"
#include "cpu/selection.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// -log(1 - u) for 32 random bits. u is exact near 0, where the winners are; the quotient repairs the rounding
// of 1 - u.
SPLITSERVE_INLINE Vec exponential(UintVec bits) {
  const Vec u = (__builtin_convertvector(bits, Vec) + 0.5f) * 0x1p-32f;
  const Vec rest = max(1.0f - u, broadcast(0x1p-25f));
  const Vec rounded = 1.0f - rest;
  return rounded > Vec{} ? -log(rest) * (u / rounded) : u;
}

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

  float lowest() const {
    float lowest = score[0];
    for (int i = 1; i < kLanes; ++i) lowest = score[i] < lowest ? score[i] : lowest;
    return lowest;
  }
};

// Least x with which a token can still beat `score`: e is never below 2^-33.
float least_useful_x(float score) {
  constexpr float kLogOfLeastNoise = -22.88f;
  constexpr float kSlack = 0.01f;
  return kLogOfLeastNoise - kSlack - log(score);
}

int32_t draw(const Row& row, const Filter& filter, NoiseKey key) {
  // How often the bound for skipping is refreshed, in tokens.
  constexpr int64_t kBlock = 64 * kLanes;
  Best best;
  float least_x = -__builtin_inff();
  IntVec ids = lane_ids();
  for (int64_t i = 0; i < row.size; i += kLanes, ids += kLanes) {
    if (i % kBlock == 0 && i > 0 && best.lowest() < __builtin_inff()) least_x = least_useful_x(best.lowest());
    const Vec logits = row(i), x = filter.x(logits);
    const IntVec kept = filter.keeps(logits, x, ids) & (x > broadcast(least_x));
    if (!any(kept)) continue;
    const Vec noise = exponential(noise_bits(key, reinterpret_cast<UintVec>(ids)));
    const Vec score = kept ? noise * exp(-x) : broadcast(__builtin_inff());
    const IntVec better = score < best.score;
    best.score = better ? score : best.score;
    best.ids = better ? ids : best.ids;
  }
  return best.token_id();
}

Filter make_filter(const SampleParams& p, int64_t r, const Row& row, float max) {
  Filter filter = keep_all(max, p.temperature[r]);
  if (p.min_p[r] > 0.0f) filter.min_x = log(p.min_p[r] < 1.0f ? p.min_p[r] : 1.0f);
  if (p.top_k[r] > 0 && p.top_k[r] < p.vocab) {
    const double k = p.top_k[r];
    filter.cut = find_cut<UnitWeight>(row, filter, [k](double) { return k; });
  }
  if (p.top_p[r] < 1.0f) {
    const double top_p = p.top_p[r];
    filter.cut = find_cut<ProbabilityWeight>(row, filter, [top_p](double total) { return top_p * total; });
  }
  return filter;
}

int32_t sample_row(const SampleParams& p, int64_t r) {
  // Below this the quotient by the temperature may overflow, and only the maximum has any probability.
  constexpr float kMinTemperature = 1e-30f;
  const Row row{p.logits + r * p.logits_stride, p.vocab};
  const Highest highest = find_highest(row);
  const bool is_finite = highest.logit - highest.logit == 0.0f;
  if (!is_finite || !(p.temperature[r] >= kMinTemperature)) return highest.token_id;
  const NoiseKey key = noise_key(static_cast<uint64_t>(p.seeds[r]), static_cast<uint64_t>(p.positions[r]));
  return draw(row, make_filter(p, r, row, highest.logit), key);
}

}  // namespace

void sample(const SampleParams& params) {
  parallel_tasks(params.rows, params.rows * params.vocab,
                 [&params](int64_t r) { params.out_token_ids[r] = sample_row(params, r); });
}

}  // namespace splitserve::SPLITSERVE_ISA
