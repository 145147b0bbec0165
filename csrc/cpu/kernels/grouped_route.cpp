// Which experts a token passes where they are in groups: the best groups first, then the best in these.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/routing.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

void score_all(const GroupedRouteParams& p, const float* logits, float* scores) {
  const int64_t experts = p.route.experts;
  if (p.is_sigmoid) {
    for (int64_t i = 0; i < experts; i += kLanes)
      store_up_to(scores + i, sigmoid(load_up_to(logits + i, experts - i)), experts - i);
    return;
  }
  float largest = logits[0];
  for (int64_t i = 1; i < experts; ++i) largest = logits[i] > largest ? logits[i] : largest;
  const float sum = sum_of_all(logits, experts, largest);
  for (int64_t i = 0; i < experts; i += kLanes) {
    const Vec score = exp(load_up_to(logits + i, experts - i) - largest) / sum;
    store_up_to(scores + i, score, experts - i);
  }
}

// What a group is judged by. NaN stays NaN.
float judge(const GroupedRouteParams& p, const float* scores, int64_t size) {
  int32_t best[2];
  choose(scores, size, best, p.counts_two ? 2 : 1);
  return p.counts_two ? scores[best[0]] + scores[best[1]] : scores[best[0]];
}

// Makes -inf of the scores of all groups but the chosen ones.
void drop_groups(const GroupedRouteParams& p, float* scores) {
  if (p.chosen_groups == p.groups) return;
  const int64_t size = p.route.experts / p.groups;
  float judged[kMaxExperts];
  int32_t kept[kMaxExperts];
  for (int64_t g = 0; g < p.groups; ++g) judged[g] = judge(p, scores + g * size, size);
  choose(judged, p.groups, kept, p.chosen_groups);
  bool is_kept[kMaxExperts] = {};
  for (int64_t i = 0; i < p.chosen_groups; ++i) is_kept[kept[i]] = true;
  for (int64_t i = 0; i < p.route.experts; ++i) {
    if (!is_kept[i / size]) scores[i] = -__builtin_inff();
  }
}

void route_token(const GroupedRouteParams& p, int64_t token) {
  const RouteParams& r = p.route;
  float scores[kMaxExperts], judged[kMaxExperts];
  score_all(p, r.logits + token * r.logits_stride, scores);
  for (int64_t i = 0; i < r.experts; ++i) judged[i] = scores[i] + (p.bias == nullptr ? 0.0f : p.bias[i]);
  drop_groups(p, judged);
  int32_t* ids = r.ids + token * r.chosen;
  float* weights = r.weights + token * r.chosen;
  choose(judged, r.experts, ids, r.chosen);
  float sum = 0.0f;
  for (int64_t j = 0; j < r.chosen; ++j) sum += scores[ids[j]];
  for (int64_t j = 0; j < r.chosen; ++j) {
    const float weight = r.adds_up ? scores[ids[j]] / (sum + kLeastWeightSum) : scores[ids[j]];
    weights[j] = weight * p.scaling;
  }
}

}  // namespace

void grouped_route(const GroupedRouteParams& p) {
  parallel_for(p.route.tokens, p.route.tokens * p.route.experts * 16, [&p](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) route_token(p, token);
  });
  sort_slots(p.route);
}

}  // namespace splitserve::SPLITSERVE_ISA
