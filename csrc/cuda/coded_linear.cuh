// Products of rows with a weight of codes. Two kernels share the work differently and sum in the same order,
// so a row has the same bits in both:
//
//   Inputs are cut into 8 slices of whole steps, however many rows there are. A slice is summed from its
//   start, and slices are added up in order.
//
// In the first kernel, for few rows, each of 8 warps takes a slice of a panel of 32 outputs: many loads of
// codes are in flight, each code is read once. In the second, for many, 8 warps take a tile of 128 rows and
// 128 outputs, one slice after the other.
//
// Steps arrive in shared memory by asynchronous copies some steps ahead; a lane multiplies rows and codes out
// of places that it has copied to itself, in the first kernel.
#pragma once

#include "cuda/coded_products.cuh"
#include "cuda/expert_rows.cuh"
#include "cuda/linear_output.cuh"

namespace splitserve::cuda {

inline constexpr int kSlices = 8, kCodedThreads = 256;
// Shared memory of a thread block, at most; CodedOps.shared_bytes says the same.
inline constexpr int64_t kCodedSharedBytes = 147584;

// How a weight's steps are cut into slices.
struct Slices {
  int steps, size;

  __device__ explicit Slices(int64_t all_steps)
      : steps(static_cast<int>(all_steps)), size((steps + kSlices - 1) / kSlices) {}
  __device__ int count() const { return (steps + size - 1) / size; }
};

SPLITSERVE_HOST_DEVICE inline ExpertStarts starts_of(const CodedLinearParams& p) {
  return {p.starts, p.weight.experts, p.rows};
}

// The index-th tile of so many rows.
template <int kTileRows>
__device__ inline bool find_tile(const CodedLinearParams& p, int64_t index, ExpertRows* tile) {
  if (p.starts != nullptr) return find_rows<kTileRows>(starts_of(p), index, tile);
  *tile = {0, index * kTileRows, p.rows};
  return true;
}

// Copies of a tile's rows, step by step: each of some threads has 16 bytes of a row, and of others at the
// same distances. Rows that are not there stay what they were: their sums are never written.
template <typename Product, int kRows, int kThreads>
class RowCopies {
 public:
  __device__ RowCopies(const CodedLinearParams& p, const ExpertRows& tile, int thread) {
    const int64_t row = tile.row + thread / kParts, stride = p.x_stride * kElement;
    const int64_t left = (tile.end - row + kEvery - 1) / kEvery;
    count_ = left < 0 ? 0 : left < kCount ? static_cast<int>(left) : kCount;
    bytes_ = static_cast<int>(p.weight.depth) * kElement - thread % kParts * 16;
    from_ = static_cast<const char*>(p.x) + row * stride + thread % kParts * 16;
    stride_ = kEvery * stride;
    place_ = thread * 16;
  }

  // What lies beyond the last input becomes zero.
  __device__ void copy(char* to, int step) const {
    const int begin = step * static_cast<int>(kStepRowBytes), left = bytes_ - begin;
    const int bytes = left < 16 ? (left < 0 ? 0 : left) : 16;
    const char* from = from_ + (bytes > 0 ? begin : 0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count_) copy_async(to + place_ + i * kEvery * kStepRowBytes, from + i * stride_, bytes);
    }
  }

 private:
  static constexpr int kElement = Product::kFormat == CodeFormat::kInt8Dot ? 1 : 2;
  static constexpr int kParts = kStepRowBytes / 16, kEvery = kThreads / kParts, kCount = kRows / kEvery;

  const char* from_;
  int64_t stride_;
  int count_, bytes_, place_;
};

// Copies of a panel's codes, and of the scales behind them.
template <typename Product, int kThreads>
class CodeCopies {
 public:
  static constexpr int kCodeBytes = static_cast<int>(step_code_bytes(Product::kFormat));
  // At most two groups with offsets.
  static constexpr int kScaleBytes = Product::kHasScales ? 4 * static_cast<int>(kScaleRowBytes) : 0;

  __device__ CodeCopies(const CodedWeightArgs& weight, int64_t panel, int thread) : place_(thread * 16) {
    codes_ = weight.codes + panel * weight.steps * kCodeBytes + place_;
    if constexpr (Product::kHasScales) {
      constexpr int kInputs = static_cast<int>(step_inputs(Product::kFormat));
      const int group = static_cast<int>(weight.group), kinds = weight.has_offsets ? 2 : 1;
      const int row_bytes = kinds * static_cast<int>(kScaleRowBytes);
      scale_bytes_ = group < kInputs ? kInputs / group * row_bytes : row_bytes;
      shift_ = group <= kInputs ? 0 : group == 2 * kInputs ? 1 : 2;
      scales_ = reinterpret_cast<const char*>(weight.scales) + panel * weight.groups * row_bytes + place_;
    }
  }

  __device__ void copy(char* to, int step) const {
    const char* from = codes_ + static_cast<int64_t>(step) * kCodeBytes;
#pragma unroll
    for (int i = 0; i < kCodeBytes; i += kThreads * 16) {
      if (kCodeBytes >= kThreads * 16 || place_ < kCodeBytes) copy_async(to + place_ + i, from + i, 16);
    }
    if constexpr (Product::kHasScales) {
      if (place_ >= scale_bytes_) return;
      copy_async(to + kCodeBytes + place_, scales_ + static_cast<int64_t>(step >> shift_) * scale_bytes_, 16);
    }
  }

 private:
  const char* codes_;
  const char* scales_;
  int place_, scale_bytes_, shift_;
};

// Where this lane's parts of a step lie.
template <typename Product>
__device__ inline StepView view_of(const char* rows, const char* codes, int lane) {
  const char* scales = codes + step_code_bytes(Product::kFormat);
  return {rows + lane * 16, codes + lane * 16, reinterpret_cast<const float*>(scales) + lane % 4 * 8};
}

// The output of a sum over all inputs.
template <typename Sum>
__device__ inline void write_output(const CodedLinearParams& p, const ExpertRows& tile, int64_t row,
                                    int64_t col, Sum sum) {
  if (row >= tile.end || col >= p.weight.cols) return;
  const int64_t place = tile.expert * p.weight.cols + col;
  float value = static_cast<float>(sum);
  if constexpr (std::same_as<Sum, int32_t>) value *= p.row_scales[row];
  if (p.weight.group == 0) value *= p.weight.scales[place];
  if (p.bias != nullptr) value += load_float(p.bias, p.dtype, place);
  store_float(p.out, p.out_dtype, row * p.out_stride + col, value);
}

// Few rows.
template <typename Product, int kRowTiles>
struct SplitShape {
  static constexpr int kRows = kRowTiles * 16;
  using Rows = RowCopies<Product, kRows, 32>;
  using Codes = CodeCopies<Product, 32>;
  static constexpr int kRowBytes = kRows * static_cast<int>(kStepRowBytes);
  static constexpr int kStepBytes = kRowBytes + Codes::kCodeBytes + Codes::kScaleBytes;
  // As many steps as leave a multiprocessor of an H100 room for two thread blocks, but enough to be early.
  static constexpr int kFitting = 110 * 1024 / kSlices / kStepBytes;
  static constexpr int kStages = kFitting < 3 ? 3 : kFitting > 8 ? 8 : kFitting;
  // Sums of a slice in shared memory: rows at such distances that lanes meet different banks.
  static constexpr int kSumsStride = kCodedCols + 8;
  static constexpr int kSumsBytes = kSlices * kRows * kSumsStride * 4;
  static constexpr int kStagesBytes = kSlices * kStages * kStepBytes;
  static constexpr int64_t kSharedBytes = (kStagesBytes > kSumsBytes ? kStagesBytes : kSumsBytes) + 128;
};

// The sums of a warp's slice.
template <typename Product, int kRowTiles>
__device__ inline void sum_slice(const CodedLinearParams& p, const ExpertRows& tile, int64_t panel,
                                 char* stages, TileSums<typename Product::Sum> (&sums)[kRowTiles]) {
  using Shape = SplitShape<Product, kRowTiles>;
  constexpr int kStages = Shape::kStages, kStepBytes = Shape::kStepBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Slices slices(p.weight.steps);
  const int begin = warp * slices.size;
  const int end = begin + slices.size < slices.steps ? begin + slices.size : slices.steps;
  const typename Shape::Rows rows(p, tile, lane);
  const typename Shape::Codes codes(p.weight, panel, lane);
  const auto copy = [&](char* stage, int step) {
    if (step < end) {
      codes.copy(stage + Shape::kRowBytes, step);
      rows.copy(stage, step);
    }
    commit_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) copy(stages + i * kStepBytes, begin + i);
  char *read = stages, *write = stages + (kStages - 1) * kStepBytes;
  for (int step = begin; step < end; ++step) {
    wait_for_copies<kStages - 2>();
    // Scales are copied by some lanes for all.
    __syncwarp();
    copy(write, step + kStages - 1);
    const StepView view = view_of<Product>(read, read + Shape::kRowBytes, lane);
    Product::template multiply<kRowTiles>(p.weight, view, lane, sums);
    write = read;
    read = read + kStepBytes == stages + kStages * kStepBytes ? stages : read + kStepBytes;
  }
  wait_for_copies<0>();
}

template <typename Product, int kRowTiles>
__global__ void __launch_bounds__(kCodedThreads, 1)
    multiply_split(const __grid_constant__ CodedLinearParams p, int64_t tiles) {
  using Shape = SplitShape<Product, kRowTiles>;
  using Sum = typename Product::Sum;
  ExpertRows tile;
  if (!find_tile<Shape::kRows>(p, blockIdx.x % tiles, &tile)) return;
  const int64_t panel = blockIdx.x / tiles;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  char* memory = dynamic_shared();
  TileSums<Sum> sums[kRowTiles] = {};
  sum_slice<Product, kRowTiles>(p, tile, tile.expert * p.weight.panels + panel,
                                memory + warp * Shape::kStages * Shape::kStepBytes, sums);
  __syncthreads();
  Sum* partial = reinterpret_cast<Sum*>(memory);
  Sum* own = partial + (warp * Shape::kRows + lane / 4) * Shape::kSumsStride + lane % 4 * 2;
#pragma unroll
  for (int row = 0; row < kRowTiles; ++row) {
#pragma unroll
    for (int col = 0; col < kColTiles; ++col) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        own[(row * 16 + j / 2 * 8) * Shape::kSumsStride + col * 8 + j % 2] = sums[row][col][j];
      }
    }
  }
  __syncthreads();
  const int count = Slices(p.weight.steps).count();
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * kCodedCols; i += kCodedThreads) {
    const int row = i / static_cast<int>(kCodedCols), col = i % static_cast<int>(kCodedCols);
    Sum total = 0;
    for (int slice = 0; slice < count; ++slice) {
      total = total + partial[(slice * Shape::kRows + row) * Shape::kSumsStride + col];
    }
    write_output(p, tile, tile.row + row, panel * kCodedCols + col, total);
  }
}

// Many rows: warps in 2 rows of 64 and 4 columns of a panel.
template <typename Product>
struct WholeShape {
  static constexpr int kRowTiles = 4, kWarpRows = kRowTiles * 16, kPanels = 4;
  static constexpr int kRows = 2 * kWarpRows;
  using Rows = RowCopies<Product, kRows, kCodedThreads>;
  // Two warps for each panel.
  using Codes = CodeCopies<Product, 64>;
  static constexpr int kStages = 4;
  static constexpr int kRowBytes = kRows * static_cast<int>(kStepRowBytes);
  static constexpr int kPanelBytes = Codes::kCodeBytes + Codes::kScaleBytes;
  static constexpr int kStepBytes = kRowBytes + kPanels * kPanelBytes;
  static constexpr int kSums = kRowTiles * kColTiles * 4;
  static constexpr int64_t kSharedBytes = kStages * kStepBytes + kSums * kCodedThreads * 4 + 128;
};

template <typename Product>
__global__ void __launch_bounds__(kCodedThreads)
    multiply_whole(const __grid_constant__ CodedLinearParams p, int64_t tiles) {
  using Shape = WholeShape<Product>;
  using Sum = typename Product::Sum;
  constexpr int kRowTiles = Shape::kRowTiles, kStages = Shape::kStages, kStepBytes = Shape::kStepBytes;
  const ExpertRows tile{0, blockIdx.x % tiles * Shape::kRows, p.rows};
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int row_of_warps = warp / Shape::kPanels, own = warp % Shape::kPanels;
  const int64_t panel = blockIdx.x / tiles * Shape::kPanels + own, last_panel = p.weight.panels - 1;
  const int panel_place = Shape::kRowBytes + own * Shape::kPanelBytes;
  char* stages = dynamic_shared();
  Sum* totals = reinterpret_cast<Sum*>(stages + kStages * kStepBytes) + thread;
  const Slices slices(p.weight.steps);
  const typename Shape::Rows rows(p, tile, thread);
  const typename Shape::Codes codes(p.weight, panel < last_panel ? panel : last_panel,
                                    row_of_warps * 32 + lane);
  const auto copy = [&](char* stage, int step) {
    if (step < slices.steps) {
      codes.copy(stage + panel_place, step);
      rows.copy(stage, step);
    }
    commit_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) copy(stages + i * kStepBytes, i);
  char *read = stages, *write = stages + (kStages - 1) * kStepBytes;
#pragma unroll
  for (int i = 0; i < Shape::kSums; ++i) totals[i * kCodedThreads] = 0;
  for (int begin = 0; begin < slices.steps; begin += slices.size) {
    const int end = begin + slices.size < slices.steps ? begin + slices.size : slices.steps;
    TileSums<Sum> sums[kRowTiles] = {};
    for (int step = begin; step < end; ++step) {
      wait_for_copies<kStages - 2>();
      __syncthreads();
      copy(write, step + kStages - 1);
      const char* own_rows = read + row_of_warps * Shape::kWarpRows * static_cast<int>(kStepRowBytes);
      const StepView view = view_of<Product>(own_rows, read + panel_place, lane);
      Product::template multiply<kRowTiles>(p.weight, view, lane, sums);
      write = read;
      read = read + kStepBytes == stages + kStages * kStepBytes ? stages : read + kStepBytes;
    }
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      Sum* total = totals + i * kCodedThreads;
      *total = *total + sums[i / 16][i / 4 % 4][i % 4];
    }
  }
  const int64_t first_row = tile.row + row_of_warps * Shape::kWarpRows + lane / 4;
  const int64_t first_col = panel * kCodedCols + lane % 4 * 2;
#pragma unroll 4
  for (int i = 0; i < Shape::kSums; ++i) {
    write_output(p, tile, first_row + i / 16 * 16 + i / 2 % 2 * 8, first_col + i / 4 % 4 * 8 + i % 2,
                 totals[i * kCodedThreads]);
  }
}

template <typename Product, int kRowTiles>
void launch_split(const CodedLinearParams& p, cudaStream_t stream) {
  using Shape = SplitShape<Product, kRowTiles>;
  const int64_t tiles =
      p.starts == nullptr ? ceil_div(p.rows, Shape::kRows) : most_tiles(starts_of(p), Shape::kRows);
  const LaunchShape shape{tiles * p.weight.panels, kCodedThreads, Shape::kSharedBytes};
  launch("coded_linear", multiply_split<Product, kRowTiles>, shape, stream, p, tiles);
}

// The sizes decide how the work is shared, and no bit of the outputs.
template <typename Product>
void run_coded_linear(const CodedLinearParams& p, cudaStream_t stream) {
  using Whole = WholeShape<Product>;
  static_assert(SplitShape<Product, 1>::kSharedBytes <= kCodedSharedBytes);
  static_assert(SplitShape<Product, 4>::kSharedBytes <= kCodedSharedBytes);
  static_assert(Whole::kSharedBytes <= kCodedSharedBytes);
  const int64_t tiles = ceil_div(p.rows, Whole::kRows);
  const int64_t blocks = tiles * ceil_div(p.weight.panels, Whole::kPanels);
  if (p.starts == nullptr && p.rows > 64 && blocks >= device_attribute(cudaDevAttrMultiProcessorCount)) {
    const LaunchShape shape{blocks, kCodedThreads, Whole::kSharedBytes};
    return launch("coded_linear", multiply_whole<Product>, shape, stream, p, tiles);
  }
  if (p.rows <= 16 * p.weight.experts) return launch_split<Product, 1>(p, stream);
  launch_split<Product, 4>(p, stream);
}

// Weights for activations of 16 bits.
template <typename Half>
void run_codes(const CodedLinearParams& p, cudaStream_t stream) {
  switch (p.weight.format) {
    case CodeFormat::kInt4:
      return run_coded_linear<CodedProduct<Half, Int4Codes<Half>, true>>(p, stream);
    case CodeFormat::kInt8:
      if (p.weight.group == 0) return run_coded_linear<CodedProduct<Half, Int8Codes<Half>, false>>(p, stream);
      return run_coded_linear<CodedProduct<Half, Int8Codes<Half>, true>>(p, stream);
    case CodeFormat::kFp8:
      return run_coded_linear<CodedProduct<Half, Fp8Codes<Half>, true>>(p, stream);
    case CodeFormat::kInt8Dot:
      return;
  }
}

}  // namespace splitserve::cuda
