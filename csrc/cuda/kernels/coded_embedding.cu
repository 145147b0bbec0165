// Rows of a weight of codes, looked up by token: a thread computes 8 inputs of a row.
#include "cuda/coded_values.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/rows.cuh"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 128;

template <typename Half, typename Codes>
__global__ void __launch_bounds__(kThreads) look_up(CodedEmbeddingParams p, int64_t blocks_per_row) {
  const CodedWeightArgs& weight = p.weight;
  const int64_t token = blockIdx.x / blocks_per_row, id = p.token_ids[token];
  const int64_t thread = blockIdx.x % blocks_per_row * kThreads + threadIdx.x, step = thread / 4;
  if (step >= weight.steps) return;
  Half* out = static_cast<Half*>(p.out) + token * p.out_stride;
  const bool is_token = id >= 0 && id < weight.cols;
  const int64_t row = is_token ? id : 0;
  const TilePlace place{row / kCodedCols, static_cast<int>(row % kCodedCols / 8)};
  const int c = static_cast<int>(row % 8), lane = static_cast<int>(thread % 4);
  const char* codes = weight.codes + (place.panel * weight.steps + step) * step_code_bytes(Codes::kFormat);
  const auto* at = reinterpret_cast<const uint32_t*>(codes + (c * 4 + lane) * 16);
  uint32_t words[Codes::kWords], values[4];
#pragma unroll
  for (int i = 0; i < Codes::kWords; ++i) {
    const int word = place.tile * Codes::kWords + i;
    words[i] = at[word / 4 * 128 + word % 4];
  }
  const StepScales by = scales_of<Codes::kFormat>(weight, place, c, row, step);
  values_of<Half>(Codes(weight.has_offsets), words, weight.has_offsets, by, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t input = step * step_inputs(Codes::kFormat) + i / 2 * 8 + lane * 2 + i % 2;
    if (input >= weight.depth) continue;
    const Half value{static_cast<uint16_t>(values[i / 2] >> i % 2 * 16)};
    // The host cannot see the ids: a token that is none makes its own row NaN, which the sampler reports.
    out[input] = is_token ? value : to<Half>(std::bit_cast<float>(0x7fc00000u));
  }
}

template <typename Half>
void run_look_up(const CodedEmbeddingParams& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.weight.steps * 4, kThreads);
  with_codes(p.weight, [&]<typename Codes>() {
    launch("coded_embedding", look_up<Half, Codes>, {p.tokens * blocks, dim3(kThreads)}, stream, p, blocks);
  });
}

}  // namespace

void coded_embedding(const CodedEmbeddingParams& p, cudaStream_t stream) {
  if (p.dtype == DType::kBFloat16) return run_look_up<BFloat16>(p, stream);
  run_look_up<Float16>(p, stream);
}

}  // namespace splitserve::cuda
