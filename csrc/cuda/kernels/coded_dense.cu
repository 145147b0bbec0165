// A weight of codes written out in the dtype of activations: a warp computes a step of a panel.
#include "cuda/coded_values.cuh"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Lane i of every four has word i of each of four values, and gets the four words of value i.
__device__ inline void turn_words(int lane, uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool is_second = lane & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      uint32_t& low = words[i];
      uint32_t& high = words[i + distance];
      const uint32_t other = __shfl_xor_sync(kWholeWarp, is_second ? low : high, distance);
      low = is_second ? other : low;
      high = is_second ? high : other;
    }
  }
}

template <typename Half, typename Codes, bool kAligned>
__global__ void __launch_bounds__(kThreads) write_out(CodedDenseParams p, int64_t blocks_per_panel) {
  const CodedWeightArgs& weight = p.weight;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t panel = blockIdx.x / blocks_per_panel;
  const int64_t step = blockIdx.x % blocks_per_panel * kWarps + warp;
  if (step >= weight.steps) return;
  const char* codes = weight.codes + (panel * weight.steps + step) * step_code_bytes(Codes::kFormat);
  uint32_t words[kColTiles][Codes::kWords];
  load_codes(codes + lane * 16, 0, words);
  const Codes unpacker(weight.has_offsets);
#pragma unroll
  for (int tile = 0; tile < kColTiles; ++tile) {
    const int64_t row = panel * kCodedCols + tile * 8 + lane / 4;
    const bool is_there = row < weight.cols;
    const StepScales by =
        scales_of<Codes::kFormat>(weight, {panel, tile}, lane / 4, is_there ? row : weight.cols - 1, step);
    Chunk chunk;
    values_of<Half>(unpacker, words[tile], weight.has_offsets, by, chunk.words);
    turn_words(lane, chunk.words);
    if (!is_there) continue;
    const int64_t begin = step * step_inputs(Codes::kFormat) + lane % 4 * kChunk<Half>;
    store_chunk<kAligned>(static_cast<Half*>(p.out) + row * p.out_stride, static_cast<int>(begin),
                          static_cast<int>(weight.depth), chunk);
  }
}

}  // namespace

void coded_dense(const CodedDenseParams& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.weight.steps, kWarps);
  const int64_t element = dtype_bytes(p.dtype);
  const bool is_aligned = Alignment()
                              .add(p.out)
                              .add_bytes(p.out_stride * element)
                              .add_bytes(p.weight.depth * element)
                              .is_aligned();
  with_type(p.dtype, is_aligned, [&]<typename T, bool kAligned>() {
    if constexpr (sizeof(T) == 2) {
      with_codes(p.weight, [&]<typename Codes>() {
        launch("coded_dense", write_out<T, Codes, kAligned>, {p.weight.panels * blocks, dim3(kThreads)},
               stream, p, blocks);
      });
    }
  });
}

}  // namespace splitserve::cuda
