// Rows of a weight of codes, looked up by token: a thread computes 8 inputs of a row.
#include "cuda/coded_products.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/rows.cuh"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 128, kInputs = 8;

// What 8 codes say, those of an output and of a lane's inputs in a step.
template <typename Codes>
__device__ inline void read_codes(const CodedWeightArgs& weight, int64_t col, int64_t step, int part,
                                  float (&values)[kInputs]) {
  constexpr int kParts = step_code_bytes(Codes::kFormat) / 512;
  const int64_t place = col / kCodedCols * weight.steps + step;
  const int tile = static_cast<int>(col % kCodedCols / 8);
  const char* at = weight.codes + place * step_code_bytes(Codes::kFormat) + (col % 8 * 4 + part) * 16;
  Chunk codes[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) codes[i] = *reinterpret_cast<const Chunk*>(at + 512 * i);
  uint32_t pairs[4] = {};
  const Codes unpacker(true, weight.has_offsets);
#pragma unroll
  for (int i = 0; i < kColTiles; ++i) {
    if (i == tile) unpacker.unpack(codes, i, pairs);
  }
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    values[i] = to_float(BFloat16{static_cast<uint16_t>(pairs[i / 2] >> i % 2 * 16)});
  }
}

// A scale of a group, or what is added to it: the kind-th of both.
__device__ inline float scale_of(const CodedWeightArgs& weight, int64_t col, int64_t input, int kind) {
  const int64_t kinds = weight.has_offsets ? 2 : 1;
  const int64_t row = (col / kCodedCols * weight.groups + input / weight.group) * kinds + kind;
  // Of 32: two of every 8 outputs are with lane % 4.
  const int64_t in_panel = col % kCodedCols;
  return weight.scales[row * kCodedCols + in_panel % 8 / 2 * 8 + in_panel / 8 * 2 + in_panel % 2];
}

template <typename Half, typename Codes>
__global__ void __launch_bounds__(kThreads) look_up(CodedEmbeddingParams p, int64_t blocks_per_row) {
  const CodedWeightArgs& weight = p.weight;
  const int64_t token = blockIdx.x / blocks_per_row, id = p.token_ids[token];
  const int64_t chunk = blockIdx.x % blocks_per_row * kThreads + threadIdx.x;
  const int64_t begin = chunk * kInputs;
  if (begin >= weight.depth) return;
  Half* out = static_cast<Half*>(p.out) + token * p.out_stride;
  const bool is_token = id >= 0 && id < weight.cols;
  const int64_t col = is_token ? id : 0;
  float values[kInputs];
  read_codes<Codes>(weight, col, chunk / 4, static_cast<int>(chunk % 4), values);
  // 8 inputs are in one group. The host cannot see the ids: a token that is none makes its own row NaN, which
  // the sampler reports.
  float scale = std::bit_cast<float>(0x7fc00000u);
  if (is_token) scale = weight.group == 0 ? weight.scales[col] : scale_of(weight, col, begin, 0);
  const float offset = weight.has_offsets ? scale_of(weight, col, begin, 1) : 0.0f;
  for (int i = 0; i < kInputs && begin + i < weight.depth; ++i) {
    const float product = values[i] * scale;
    // Zeros keep their signs.
    out[begin + i] = to<Half>(weight.has_offsets ? product + offset : product);
  }
}

template <typename Half>
void run_look_up(const CodedEmbeddingParams& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(ceil_div(p.weight.depth, kInputs), kThreads);
  const LaunchShape shape{p.tokens * blocks, dim3(kThreads)};
  // Codes are read as bfloat16, which holds all of them.
  auto* kernel = look_up<Half, Int8Codes<BFloat16>>;
  if (p.weight.format == CodeFormat::kInt4) kernel = look_up<Half, Int4Codes<BFloat16>>;
  if (p.weight.format == CodeFormat::kFp8) kernel = look_up<Half, Fp8Codes<BFloat16>>;
  launch("coded_embedding", kernel, shape, stream, p, blocks);
}

}  // namespace

void coded_embedding(const CodedEmbeddingParams& p, cudaStream_t stream) {
  if (p.dtype == DType::kBFloat16) return run_look_up<BFloat16>(p, stream);
  run_look_up<Float16>(p, stream);
}

}  // namespace splitserve::cuda
