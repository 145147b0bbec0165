// Finds where a preference-ordered list of tokens has to be cut, without sorting the vocabulary.
//
// A histogram over logits tells in which narrow band of logits the cut lies; only that band is sorted.
#pragma once

#include <cstdlib>

#include "common/logit_rules.h"
#include "cpu/candidates.h"
#include "cpu/vec_math.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

inline constexpr int kBins = 1024;
inline constexpr float kBinsPerUnit =
    32.0f;  // bins cover 32 units below the maximum, the last one all the rest

// A row of logits. Lanes past its end read as -inf, and so do those that the mask forbids.
struct Row {
  const float* logits;
  int64_t size;
  const uint32_t* mask = nullptr;  // allows all if null

  SPLITSERVE_INLINE Vec operator()(int64_t i) const {
    if (mask == nullptr || i >= size) return unmasked(i);
    return allowed(i) == 0 ? broadcast(-__builtin_inff()) : masked(unmasked(i), i);
  }

  SPLITSERVE_INLINE Vec unmasked(int64_t i) const {
    return i + kLanes <= size ? load(logits + i)
                              : load_partial(logits + i, static_cast<int>(size - i), -__builtin_inff());
  }

  SPLITSERVE_INLINE Vec masked(Vec own, int64_t i) const {
    const IntVec is_allowed = ((UintVec{} + allowed(i)) >> reinterpret_cast<UintVec>(lane_ids()) & 1u) != 0u;
    return is_allowed ? own : broadcast(-__builtin_inff());
  }

  // Whether the mask forbids all of these lanes, which are most in the rows of a grammar.
  SPLITSERVE_INLINE bool is_forbidden(int64_t i) const { return mask != nullptr && allowed(i) == 0; }

 private:
  SPLITSERVE_INLINE uint32_t allowed(int64_t i) const {
    return mask[i / kMaskBits] >> i % kMaskBits & ((uint64_t{1} << kLanes) - 1);
  }
};

// The largest logit that the mask allows; NaN if there is one among all.
SPLITSERVE_INLINE float highest_logit(const Row& row) {
  Vec highest = broadcast(-__builtin_inff());
  IntVec nan{};
  for (int64_t i = 0; i < row.size; i += kLanes) {
    const Vec logits = row.unmasked(i);
    nan |= logits != logits;
    if (row.is_forbidden(i)) continue;
    highest = max(row.mask == nullptr ? logits : row.masked(logits, i), highest);
  }
  return any(nan) ? __builtin_nanf("") : max_lanes(highest);
}

// The lowest id with a logit that the row holds.
SPLITSERVE_INLINE int32_t first_with(const Row& row, float logit) {
  int64_t i = 0;
  while (i + kLanes < row.size && !any(row(i) == broadcast(logit))) i += kLanes;
  return static_cast<int32_t>(i) + __builtin_ctz(lane_bits(row(i) == broadcast(logit)));
}

// A logit that at least k tokens reach, -inf for a k beyond kGroups. Tokens are dealt out to groups; the
// highest of each group is a token of its own.
inline constexpr int64_t kGroups = 256;
SPLITSERVE_INLINE float reached_by(const Row& row, int64_t k) {
  if (k > kGroups) return -__builtin_inff();
  Vec highest[kGroups / kLanes];
  for (Vec& group : highest) group = broadcast(-__builtin_inff());
  for (int64_t i = 0; i < row.size; i += kGroups) {
    for (int64_t v = 0; v < kGroups / kLanes; ++v) highest[v] = max(row(i + v * kLanes), highest[v]);
  }
  float values[kGroups];
  for (int64_t v = 0; v < kGroups / kLanes; ++v) store(values + v * kLanes, highest[v]);
  return kth_largest(values, kGroups, k);
}

// Which tokens take part: x = (logit - max) / temperature at least min_x, and not after `cut` in preference
// order.
struct Filter {
  float max;
  float inverse_temperature;
  float min_x;
  Candidate cut;  // the last token that takes part

  SPLITSERVE_INLINE Vec x(Vec logits) const { return (logits - max) * inverse_temperature; }
  SPLITSERVE_INLINE IntVec keeps(Vec logits, Vec x, IntVec ids) const {
    const Vec limit = broadcast(cut.logit);
    const IntVec tie = (logits == limit) & (ids <= cut.token_id);
    return (x >= broadcast(min_x)) & ((logits > limit) | tie);
  }
};

inline Filter keep_all(float max, float temperature) {
  return {max, 1.0f / temperature, -__builtin_inff(), {-__builtin_inff(), INT32_MAX}};
}

// Unit weight counts tokens (top-k), probability weight measures mass (top-p).
struct UnitWeight {
  SPLITSERVE_INLINE static Vec of(Vec) { return broadcast(1.0f); }
};
struct ProbabilityWeight {
  SPLITSERVE_INLINE static Vec of(Vec x) { return exp(x); }
};

// Sum of exp(x) over the tokens that pass the filter, in an order fixed by the row's length.
SPLITSERVE_INLINE float total_probability(const Row& row, const Filter& filter) {
  Vec sums[4] = {};
  IntVec ids = lane_ids();
  for (int64_t i = 0, turn = 0; i < row.size; i += kLanes, ids += kLanes, ++turn) {
    const Vec logits = row(i), x = filter.x(logits);
    const IntVec kept = filter.keeps(logits, x, ids);
    if (any(kept)) sums[turn & 3] = sums[turn & 3] + (kept ? exp(x) : Vec{});
  }
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

struct Histogram {
  double weight[kBins];
  int32_t count[kBins];
};

// Larger for less preferred logits, never the other way round. NaN (inf - inf) goes to the last bin.
SPLITSERVE_INLINE IntVec bins_of(Vec x) {
  return __builtin_convertvector(min(x * -kBinsPerUnit, broadcast(kBins - 1)), IntVec);
}

// Calls fn(token_id, logit, bin, weight) for each token that passes the filter, in order of ids.
template <typename Weight, typename Fn>
void for_each_kept(const Row& row, const Filter& filter, const Fn& fn) {
  IntVec ids = lane_ids();
  for (int64_t i = 0; i < row.size; i += kLanes, ids += kLanes) {
    const Vec logits = row(i), x = filter.x(logits);
    // A row whose maximum is infinite gives x = NaN; min() against NaN keeps such tokens.
    uint32_t kept = lane_bits(filter.keeps(logits, min(x, broadcast(-0.0f)), ids));
    if (i + kLanes > row.size) kept &= (1u << (row.size - i)) - 1;
    if (kept == 0) continue;
    const IntVec bins = bins_of(x);
    const Vec weights = Weight::of(x);
    for (; kept != 0; kept &= kept - 1) {
      const int lane = __builtin_ctz(kept);
      fn(static_cast<int32_t>(i + lane), logits[lane], bins[lane], weights[lane]);
    }
  }
}

// The last token of the shortest preference-ordered list whose weight reaches target, at least one token;
// filter.cut if there is none. Cost follows the number of tokens that pass the filter.
template <typename Weight>
Candidate find_cut(const Row& row, const Filter& filter, double target) {
  Histogram histogram = {};
  for_each_kept<Weight>(row, filter, [&](int32_t, float, int32_t bin, float weight) {
    histogram.weight[bin] += weight;
    histogram.count[bin] += 1;
  });
  double before = 0.0;
  int bin = 0;
  for (; bin < kBins; ++bin) {
    if (histogram.count[bin] > 0 && before + histogram.weight[bin] >= target) break;
    before += histogram.weight[bin];
  }
  if (bin == kBins) return filter.cut;
  auto* band =
      static_cast<Candidate*>(std::malloc(static_cast<size_t>(histogram.count[bin]) * sizeof(Candidate)));
  int64_t count = 0;
  Filter down_to_bin = filter;
  const float least_x = static_cast<float>(bin + 1) / -kBinsPerUnit;
  if (bin + 1 < kBins && least_x > filter.min_x) down_to_bin.min_x = least_x;
  for_each_kept<UnitWeight>(row, down_to_bin, [&](int32_t token_id, float logit, int32_t token_bin, float) {
    if (token_bin == bin) band[count++] = {logit, token_id};
  });
  sort_candidates(band, count);
  int64_t last = 0;
  for (double mass = before; last < count; ++last) {
    mass += static_cast<double>(Weight::of(filter.x(broadcast(band[last].logit)))[0]);
    if (mass >= target) break;
  }
  const Candidate cut = band[last < count ? last : count - 1];
  std::free(band);
  return cut;
}

// The k-th token.
SPLITSERVE_INLINE Candidate find_top_k(const Row& row, Filter filter, int64_t k) {
  const float least_x = filter.x(broadcast(reached_by(row, k)))[0];
  if (least_x > filter.min_x) filter.min_x = least_x;
  return find_cut<UnitWeight>(row, filter, static_cast<double>(k));
}

// The last token of those whose mass reaches top_p. Tokens of which all together are not half of the rest
// cannot be among them.
SPLITSERVE_INLINE Candidate find_top_p(const Row& row, Filter filter, float top_p) {
  const float total = total_probability(row, filter);
  const float least_x = log(0.5f * (1.0f - top_p) * total / static_cast<float>(row.size));
  if (least_x > filter.min_x) filter.min_x = least_x;
  return find_cut<ProbabilityWeight>(row, filter, static_cast<double>(top_p) * static_cast<double>(total));
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
