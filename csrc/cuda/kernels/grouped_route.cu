// Which experts a token passes where they are in groups: the best groups first, then the best in these. A
// warp per token.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {
namespace {

__device__ inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Calls take(index) for the `chosen` largest of `count` scores, the largest first, of equals the lower index;
// all lanes with the same.
template <typename Fn>
__device__ void choose(const float* scores, int count, int chosen, const Fn& take) {
  uint64_t last = UINT64_MAX;
  for (int j = 0; j < chosen; ++j) {
    uint64_t best = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarpSize) {
      const uint64_t key = uint64_t{choice_key(scores[i])} << 32 | ~static_cast<uint32_t>(i);
      if (key < last) best = larger(best, key);
    }
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
      best = larger(best, __shfl_xor_sync(kWholeWarp, best, offset));
    last = best;
    take(static_cast<int>(~static_cast<uint32_t>(best)));
  }
}

// Of all experts, sigmoids or the softmax.
__device__ void score_all(const GroupedRouteParams& p, const float* logits, float* scores) {
  const int experts = static_cast<int>(p.route.experts), lane = static_cast<int>(threadIdx.x);
  float largest = -INFINITY, sum = 0.0f;
  if (!p.is_sigmoid) {
    for (int i = lane; i < experts; i += kWarpSize) largest = fmaxf(largest, logits[i]);
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, offset));
    for (int i = lane; i < experts; i += kWarpSize) sum += expf(logits[i] - largest);
    sum = sum_of_row(sum);
  }
  for (int i = lane; i < experts; i += kWarpSize)
    scores[i] = p.is_sigmoid ? 1.0f / (1.0f + expf(-logits[i])) : expf(logits[i] - largest) / sum;
}

// What a group is judged by: its best score, or the sum of its two best.
__device__ float judge(const GroupedRouteParams& p, const float* scores, int size) {
  int best = 0;
  for (int i = 1; i < size; ++i) best = choice_key(scores[i]) > choice_key(scores[best]) ? i : best;
  if (!p.counts_two) return scores[best];
  int second = best == 0 ? 1 : 0;
  for (int i = second + 1; i < size; ++i) {
    if (i != best && choice_key(scores[i]) > choice_key(scores[second])) second = i;
  }
  return scores[best] + scores[second];
}

// Makes -inf of the scores of all groups but the chosen ones.
__device__ void drop_groups(const GroupedRouteParams& p, float* scores) {
  __shared__ float judged[kMaxExperts];
  __shared__ bool is_kept[kMaxExperts];
  const int groups = static_cast<int>(p.groups), experts = static_cast<int>(p.route.experts),
            size = experts / groups, lane = static_cast<int>(threadIdx.x);
  for (int g = lane; g < groups; g += kWarpSize) {
    judged[g] = judge(p, scores + g * size, size);
    is_kept[g] = false;
  }
  __syncwarp();
  choose(judged, groups, static_cast<int>(p.chosen_groups), [&](int g) {
    if (lane == 0) is_kept[g] = true;
  });
  __syncwarp();
  for (int i = lane; i < experts; i += kWarpSize) {
    if (!is_kept[i / size]) scores[i] = -INFINITY;
  }
}

__global__ void __launch_bounds__(kWarpSize) route_grouped(GroupedRouteParams p) {
  __shared__ float scores[kMaxExperts], judged[kMaxExperts];
  const RouteParams& r = p.route;
  const int64_t token = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  score_all(p, r.logits + token * r.logits_stride, scores);
  for (int i = lane; i < r.experts; i += kWarpSize)
    judged[i] = scores[i] + (p.bias == nullptr ? 0.0f : p.bias[i]);
  __syncwarp();
  if (p.chosen_groups < p.groups) drop_groups(p, judged);
  __syncwarp();
  int32_t* ids = r.ids + token * r.chosen;
  float* weights = r.weights + token * r.chosen;
  float sum = 0.0f;
  int j = 0;
  choose(judged, static_cast<int>(r.experts), static_cast<int>(r.chosen), [&](int expert) {
    if (lane == 0) ids[j] = expert;
    sum += scores[expert];
    ++j;
  });
  __syncwarp();
  for (j = lane; j < r.chosen; j += kWarpSize) {
    const float score = scores[ids[j]];
    weights[j] = (r.adds_up ? score / (sum + kLeastWeightSum) : score) * p.scaling;
  }
}

}  // namespace

void grouped_route(const GroupedRouteParams& p, cudaStream_t stream) {
  launch("grouped_route", route_grouped, {p.route.tokens, kWarpSize}, stream, p);
  place_slots(p.route, stream);
}

}  // namespace splitserve::cuda
