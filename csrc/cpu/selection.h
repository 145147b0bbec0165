// Finds where a preference-ordered list of tokens has to be cut, without sorting the vocabulary.
//
// A histogram over logits tells in which narrow band of logits the cut lies; only that band is sorted.
#pragma once

#include <cstdlib>

#include "cpu/candidates.h"
#include "cpu/vec_math.h"

namespace splitserve::SPLITSERVE_ISA {

inline constexpr int kBins = 1024;
inline constexpr float kBinsPerUnit =
    32.0f;  // bins cover 32 units below the maximum, the last one all the rest

// A row of logits with lanes past its end reading as -inf.
struct Row {
  const float* logits;
  int64_t size;

  SPLITSERVE_INLINE Vec operator()(int64_t i) const {
    return i + kLanes <= size ? load(logits + i)
                              : load_partial(logits + i, static_cast<int>(size - i), -__builtin_inff());
  }
};

struct Highest {
  float logit;
  int32_t token_id;  // the lowest id with that logit; -1 if the row holds a NaN
};

inline Highest find_highest(const Row& row) {
  Vec highest = broadcast(-__builtin_inff());
  IntVec nan{};
  for (int64_t i = 0; i < row.size; i += kLanes) {
    const Vec logits = row(i);
    highest = max(logits, highest);
    nan |= logits != logits;
  }
  if (any(nan)) return {__builtin_nanf(""), -1};
  const float logit = max_lanes(highest);
  int32_t token_id = 0;
  while (row.logits[token_id] != logit) ++token_id;
  return {logit, token_id};
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
    const IntVec kept = filter.keeps(logits, min(x, broadcast(-0.0f)), ids);
    if (!any(kept)) continue;
    const IntVec bins = bins_of(x);
    const Vec weights = Weight::of(x);
    for (int lane = 0; lane < kLanes && i + lane < row.size; ++lane) {
      if (kept[lane]) fn(static_cast<int32_t>(i + lane), logits[lane], bins[lane], weights[lane]);
    }
  }
}

// The last token of the shortest preference-ordered list whose weight reaches target(total weight); at least
// one token.
template <typename Weight, typename Target>
Candidate find_cut(const Row& row, const Filter& filter, const Target& target_of) {
  Histogram histogram = {};
  for_each_kept<Weight>(row, filter, [&](int32_t, float, int32_t bin, float weight) {
    histogram.weight[bin] += weight;
    histogram.count[bin] += 1;
  });
  double total = 0.0;
  for (int bin = 0; bin < kBins; ++bin) total += histogram.weight[bin];
  const double target = target_of(total);
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
  for_each_kept<UnitWeight>(row, filter, [&](int32_t token_id, float logit, int32_t token_bin, float) {
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

}  // namespace splitserve::SPLITSERVE_ISA
