// Products of rows with a weight of codes by single warps. What a warpgroup multiplies (coded_wide.cuh) is
// summed in the same order, so a row has the same bits in all kernels:
//
//   Inputs are cut into up to 8 slices of whole groups, however many rows there are. A slice is summed from
//   its start, and slices are added up in order.
//
// Each of 8 warps takes a slice of a panel of 32 outputs: many loads of codes are in flight, each code is
// read once per 8 or 16 rows.
#pragma once

#include "cuda/coded_copies.cuh"
#include "cuda/coded_warp.cuh"
#include "cuda/linear_output.cuh"

namespace splitserve::cuda {

inline constexpr int kCodedThreads = Slices::kMost * 32;
// Shared memory of a thread block, at most; CodedOps.shared_bytes says the same.
inline constexpr int64_t kCodedSharedBytes = 148480;
// What each of so many thread blocks has of an H100's 228 KiB, but for the 1 that is the system's and for
// alignment.
inline constexpr int shared_share(int blocks) {
  const int64_t share = 228 * 1024 / blocks - 1024;
  return static_cast<int>(share < kCodedSharedBytes ? share : kCodedSharedBytes) - kLinesAlignment;
}

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

// The dynamic shared memory, from where lines can begin.
__device__ inline char* lines_in_shared() {
  char* memory = dynamic_shared();
  const unsigned past = shared_address(memory) % kLinesAlignment;
  return past == 0 ? memory : memory + (kLinesAlignment - past);
}

// A panel's part of the stage that begins with a step. A group of 128 inputs has two.
template <typename Product>
__device__ inline StageView view_of(const CodedWeightArgs& weight, const char* rows, const char* codes,
                                    int lane, int step) {
  constexpr int kSteps = Product::kStageSteps;
  const char* scales = codes + kSteps * Product::kCodeBytes;
  const bool ends_group =
      weight.group <= Product::kStageInputs || step / kSteps % 2 == 1 || step + kSteps >= weight.steps;
  return {rows, codes + lane * 16, reinterpret_cast<const float*>(scales), ends_group};
}

// Turns sums over all inputs into outputs: kCols that follow each other, of an expert, each in any row.
template <int kCols>
class CodedOutputs {
 public:
  __device__ CodedOutputs(const CodedLinearParams& p, int64_t expert, int64_t col) : col_(col) {
    const int64_t left = p.weight.cols - col, place = expert * p.weight.cols + col;
    count_ = left < kCols ? (left < 0 ? 0 : static_cast<int>(left)) : kCols;
    is_whole_ =
        count_ == kCols && reinterpret_cast<intptr_t>(p.out) % 16 == 0 && (p.out_stride | col) % kCols == 0;
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
      const bool is_there = i < count_;
      scales_[i] = p.weight.group == 0 && is_there ? p.weight.scales[place + i] : 1.0f;
      biases_[i] = p.bias != nullptr && is_there ? load_float(p.bias, p.dtype, place + i) : 0.0f;
    }
  }

  template <typename Sum>
  __device__ void write(const CodedLinearParams& p, int64_t row, const Sum (&sums)[kCols]) const {
    float values[kCols];
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
      values[i] = static_cast<float>(sums[i]);
      if constexpr (std::same_as<Sum, int32_t>) values[i] *= p.row_scales[row];
      if (p.weight.group == 0) values[i] *= scales_[i];
      if (p.bias != nullptr) values[i] += biases_[i];
    }
    const int64_t place = row * p.out_stride + col_;
    if constexpr (kCols == 4) {
      if (is_whole_) return store_four(p.out, p.out_dtype, place, values);
    }
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
      if (i < count_) store_float(p.out, p.out_dtype, place + i, values[i]);
    }
  }

 private:
  int64_t col_;
  int count_;
  bool is_whole_;
  float scales_[kCols], biases_[kCols];
};

// Tiles of 8 or 16 rows.
template <typename Product_, int kRows_>
struct SplitShape {
  using Product = Product_;
  using Sum = typename Product::Sum;
  using Sums = WarpSums<Product, kRows_>;
  static constexpr int kRows = kRows_;
  using Rows = RowCopies<Product, kRows, 32>;
  using Codes = CodeCopies<Product, 32>;
  static constexpr int kRowBytes = kRows * Product::kLineBytes;
  static constexpr int kStageBytes = kRowBytes + Codes::kCodeBytes + Codes::kScaleBytes;
  // Sums of a slice in shared memory, where stages were: rows at such distances that lanes meet different
  // banks.
  static constexpr int kSumsStride = kCodedCols + 4;
  static constexpr int kSumsBytes = Slices::kMost * kRows * kSumsStride * 4;
  // Thread blocks of a multiprocessor of an H100, where registers and shared memory do for two, and the
  // stages that there is room for then.
  static constexpr bool kIsSmall =
      (kRows == 8 || !Product::kHasGroups) && shared_share(2) / Slices::kMost / kStageBytes >= 3;
  static constexpr int kBlocks = kIsSmall ? 2 : 1;
  static constexpr int kFitting = shared_share(kBlocks) / Slices::kMost / kStageBytes;
  static constexpr int kStages = kFitting > 8 ? 8 : kFitting;
  static_assert(kStages >= 3);
  static constexpr int kStagesBytes = Slices::kMost * kStages * kStageBytes;
  static constexpr int64_t kSharedBytes =
      (kStagesBytes > kSumsBytes ? kStagesBytes : kSumsBytes) + kLinesAlignment;
};

// The sums of a warp's slice.
template <typename Shape>
__device__ inline void sum_slice(const CodedLinearParams& p, const ExpertRows& tile, int64_t panel,
                                 char* stages, typename Shape::Sums& sums) {
  using Product = typename Shape::Product;
  constexpr int kStages = Shape::kStages, kStageBytes = Shape::kStageBytes, kSteps = Product::kStageSteps;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Slices slices(p.weight.steps);
  const int begin = slices.begin(warp), end = slices.begin(warp + 1);
  typename Shape::Rows rows(p, tile, lane, begin);
  typename Shape::Codes codes(p.weight, panel, lane, begin);
  const auto copy = [&](char* stage, int step) {
    if (step < end) {
      codes.copy(stage + Shape::kRowBytes);
      rows.copy(stage);
    }
    commit_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) copy(stages + i * kStageBytes, begin + i * kSteps);
  char *read = stages, *write = stages + (kStages - 1) * kStageBytes;
  for (int step = begin; step < end; step += kSteps) {
    wait_for_copies<kStages - 2>();
    // Lanes copy for each other.
    __syncwarp();
    copy(write, step + (kStages - 1) * kSteps);
    sums.multiply(p.weight, view_of<Product>(p.weight, read, read + Shape::kRowBytes, lane, step), lane);
    write = read;
    read = read + kStageBytes == stages + kStages * kStageBytes ? stages : read + kStageBytes;
  }
}

template <typename Shape>
__global__ void __launch_bounds__(kCodedThreads, Shape::kBlocks)
    multiply_split(const __grid_constant__ CodedLinearParams p, int64_t tiles) {
  using Sum = typename Shape::Sum;
  ExpertRows tile;
  if (!find_tile<Shape::kRows>(p, blockIdx.x % tiles, &tile)) return;
  const int64_t panel = blockIdx.x / tiles;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  char* memory = lines_in_shared();
  typename Shape::Sums sums;
  sum_slice<Shape>(p, tile, tile.expert * p.weight.panels + panel,
                   memory + warp * Shape::kStages * Shape::kStageBytes, sums);
  __syncthreads();
  constexpr int kSliceSums = Shape::kRows * Shape::kSumsStride;
  Sum* slices = reinterpret_cast<Sum*>(memory);
  sums.write(slices + warp * kSliceSums, Shape::kSumsStride, thread % 32);
  __syncthreads();
  const int count = Slices(p.weight.steps).count();
  // A thread has one column.
  static_assert(kCodedThreads % kCodedCols == 0);
  const int col = thread % static_cast<int>(kCodedCols);
  const CodedOutputs<1> outputs(p, tile.expert, panel * kCodedCols + col);
  for (int row = thread / static_cast<int>(kCodedCols); row < Shape::kRows;
       row += kCodedThreads / kCodedCols) {
    if (tile.row + row >= tile.end) return;
    Sum total[1] = {};
    for (int slice = 0; slice < count; ++slice) {
      total[0] = total[0] + slices[slice * kSliceSums + row * Shape::kSumsStride + col];
    }
    outputs.write(p, tile.row + row, total);
  }
}

// The sizes decide how the work is shared, and no bit of the outputs.
template <typename Shape>
void launch_split(const CodedLinearParams& p, cudaStream_t stream) {
  static_assert(Shape::kSharedBytes <= kCodedSharedBytes);
  const int64_t tiles =
      p.starts == nullptr ? ceil_div(p.rows, Shape::kRows) : most_tiles(starts_of(p), Shape::kRows);
  const LaunchShape shape{tiles * p.weight.panels, kCodedThreads, Shape::kSharedBytes};
  launch("coded_linear", multiply_split<Shape>, shape, stream, p, tiles);
}

// Whether tiles of 8 rows do; of experts half of them then have fewer, and the others may have two.
inline bool is_few(const CodedLinearParams& p) {
  return p.rows <= (p.starts == nullptr ? 8 : 4 * p.weight.experts);
}

// Whether the kernels of coded_wide.cuh multiply.
inline bool takes_warpgroups(const CodedLinearParams& p) {
  return p.rows > 16 * p.weight.experts && device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
}

template <typename Product>
void run_coded_linear(const CodedLinearParams& p, cudaStream_t stream) {
  if (is_few(p)) return launch_split<SplitShape<Product, 8>>(p, stream);
  launch_split<SplitShape<Product, 16>>(p, stream);
}

// Calls run<Product>() for weights whose activations have 16 bits.
template <typename Half, typename Run>
void with_product(const CodedWeightArgs& weight, const Run& run) {
  switch (weight.format) {
    case CodeFormat::kInt4:
      return run.template operator()<CodedProduct<Half, Int4Codes<Half>, true>>();
    case CodeFormat::kInt8:
      if (weight.group == 0) return run.template operator()<CodedProduct<Half, Int8Codes<Half>, false>>();
      return run.template operator()<CodedProduct<Half, Int8Codes<Half>, true>>();
    case CodeFormat::kFp8:
      return run.template operator()<CodedProduct<Half, Fp8Codes<Half>, true>>();
    case CodeFormat::kInt8Dot:
      return;
  }
}

}  // namespace splitserve::cuda
