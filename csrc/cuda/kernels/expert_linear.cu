// Products of rows with the matrices of their experts. A thread block takes some rows of one expert and some
// columns; which expert and rows these are, it finds out itself, so that a graph may be replayed with another
// choice.
#include "cuda/dispatch.h"
#include "cuda/expert_tile.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

template <typename Column, typename Shape, bool kAligned>
__global__ void __launch_bounds__(kExpertThreads, 2)
    multiply_halves(const __grid_constant__ ExpertLinearParams p, int64_t col_blocks) {
  ExpertRows tile;
  if (!find_rows<Shape::kTileRows>(starts_of(p), blockIdx.x / col_blocks, &tile)) return;
  ExpertTile<Column, Shape, kAligned>(p, tile, blockIdx.x % col_blocks * Shape::kTileCols).run();
}

__global__ void __launch_bounds__(kExpertThreads)
    multiply_floats(const __grid_constant__ ExpertLinearParams p, int64_t col_blocks) {
  ExpertRows tile;
  if (!find_rows<kExpertRows>(starts_of(p), blockIdx.x / col_blocks, &tile)) return;
  const int64_t col = blockIdx.x % col_blocks * kExpertThreads + threadIdx.x;
  if (col >= p.cols) return;
  const float* weight = static_cast<const float*>(p.weight) + (tile.expert * p.cols + col) * p.depth;
  for (int64_t row = tile.row; row < tile.end && row < tile.row + kExpertRows; ++row) {
    const float* x = static_cast<const float*>(p.x) + row * p.x_stride;
    float sum = 0.0f;
    for (int64_t k = 0; k < p.depth; ++k) sum = fmaf(x[k], weight[k], sum);
    write(p, tile, row, col, sum);
  }
}

template <typename Column, typename Shape, bool kAligned>
void run_shape(const ExpertLinearParams& p, cudaStream_t stream) {
  const int64_t col_blocks = ceil_div(p.cols, Shape::kTileCols);
  const LaunchShape shape{most_tiles(starts_of(p), Shape::kTileRows) * col_blocks, kExpertThreads};
  launch("expert_linear", multiply_halves<Column, Shape, kAligned>, shape, stream, p, col_blocks);
}

template <typename Column, bool kAligned>
void run_column(const ExpertLinearParams& p, cudaStream_t stream) {
  if constexpr (kAligned) {
    // Most experts have more rows than two instructions.
    const bool has_many = p.rows > 2 * kExpertRows * p.experts;
    if (has_many) return run_shape<Column, ManyRows, kAligned>(p, stream);
  }
  run_shape<Column, FewRows, kAligned>(p, stream);
}

template <typename Half>
void run_halves(const ExpertLinearParams& p, cudaStream_t stream) {
  constexpr int64_t kElement = sizeof(Half);
  const bool is_aligned =
      Alignment().add(p.x).add_bytes(p.x_stride * kElement).add_bytes(p.depth * kElement).is_aligned();
  with_alignment(is_aligned && Alignment().add(p.weight).is_aligned(), [&]<bool kAligned>() {
    if constexpr (std::same_as<Half, BFloat16>) {
      if (p.scales != nullptr) return run_column<Mxfp4Column, kAligned>(p, stream);
    }
    run_column<PlainColumn<Half, kAligned>, kAligned>(p, stream);
  });
}

}  // namespace

void expert_linear(const ExpertLinearParams& p, cudaStream_t stream) {
  const int64_t col_blocks = ceil_div(p.cols, kExpertThreads);
  const LaunchShape shape{most_tiles(starts_of(p), kExpertRows) * col_blocks, kExpertThreads};
  switch (p.dtype) {
    case DType::kFloat32:
      return launch("expert_linear", multiply_floats, shape, stream, p, col_blocks);
    case DType::kBFloat16:
      return run_halves<BFloat16>(p, stream);
    case DType::kFloat16:
      return run_halves<Float16>(p, stream);
  }
}

}  // namespace splitserve::cuda
