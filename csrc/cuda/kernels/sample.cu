// Draws one token per row: temperature, then min-p, top-k and top-p, then the Gumbel-max trick, as on the
// CPU.
//
// The trick in its exponential form: with e_i drawn from Exp(1), the token with the least e_i / p_i is a draw
// from p.
#include "common/noise.h"
#include "cuda/kernels.h"
#include "cuda/vocab_cut.cuh"
#include "cuda/vocab_launch.h"

namespace splitserve::cuda {
namespace {

__device__ VocabFilter make_filter(const SampleParams& p, int r, const VocabRow& row) {
  VocabFilter filter = keep_all(row.highest(), p.temperature[r]);
  const float min_p = p.min_p[r], top_p = p.top_p[r];
  if (min_p > 0.0f) filter.min_x = log_portable(fminf(min_p, 1.0f));
  if (p.top_k[r] > 0 && p.top_k[r] < p.vocab) {
    filter.cut =
        CutFinder(row, filter, false).find([&](uint64_t) { return static_cast<uint64_t>(p.top_k[r]); });
  }
  if (top_p < 1.0f) {
    filter.cut = CutFinder(row, filter, true).find([&](uint64_t mass) {
      const double target = ceil(static_cast<double>(top_p) * static_cast<double>(mass));
      return target >= 1.0 ? static_cast<uint64_t>(target) : 1;
    });
  }
  return filter;
}

__device__ int32_t draw(const VocabRow& row, const VocabFilter& filter, NoiseKey key) {
  uint64_t best = ~uint64_t{0};
  row.for_each([&](float logit, int token_id) {
    const float x = filter.x(logit);
    if (x == -INFINITY || !filter.keeps(logit, token_id)) return;
    const float noise = exponential_noise(noise_bits(key, static_cast<uint32_t>(token_id)));
    const float score = multiply(noise, exp_portable(-x));
    // Scores are not negative, so their bits are in their order; among equal ones the lower id wins.
    const uint64_t rank = uint64_t{std::bit_cast<uint32_t>(score)} << 32 | static_cast<uint32_t>(token_id);
    if (score < INFINITY && rank < best) best = rank;
  });
  return static_cast<int32_t>(row.reduce(best, [](uint64_t a, uint64_t b) { return a < b ? a : b; }));
}

__device__ const uint32_t* mask_of(const SampleParams& p, int r) {
  if (p.masks == nullptr || p.mask_rows[r] < 0 || p.mask_rows[r] >= p.num_masks) return nullptr;
  return p.masks + p.mask_rows[r] * p.masks_stride;
}

__global__ void __launch_bounds__(kVocabThreads, 2)
    sample_kernel(const __grid_constant__ SampleParams p, bool is_cached) {
  // Below this the quotient by the temperature may overflow, and only the maximum has any probability.
  constexpr float kMinTemperature = 1e-30f;
  const int r = static_cast<int>(blockIdx.x / cluster_size());
  VocabRow row(p.logits + r * p.logits_stride, p.vocab, is_cached, mask_of(p, r));
  row.load();
  int32_t token_id = row.highest_id();
  if (row.has_finite_highest() && p.temperature[r] >= kMinTemperature) {
    const NoiseKey key = noise_key(static_cast<uint64_t>(p.seeds[r]), static_cast<uint64_t>(p.positions[r]));
    token_id = draw(row, make_filter(p, r, row), key);
  }
  if (cluster_rank() == 0 && threadIdx.x == 0) p.out_token_ids[r] = token_id;
}

}  // namespace

void sample(const SampleParams& params, cudaStream_t stream) {
  const VocabLaunch launched = vocab_launch(params.rows, params.vocab);
  launch("sample", sample_kernel, launched.shape, stream, params, launched.is_cached);
}

}  // namespace splitserve::cuda
