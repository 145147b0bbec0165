// Products of many rows with a weight of codes by warpgroups: the weight's operands are made in registers,
// the rows are multiplied where they lie in shared memory. For compute capability 9.0.
//
// A thread block has a tile of rows with some panels, of which each warp has 16 outputs. The 8 slices of the
// inputs (coded_linear.cuh) are shared by the thread blocks of a cluster, which then add them up in order,
// each for a part of the rows.
#pragma once

#include "cuda/coded_linear.cuh"
#include "cuda/warpgroup.cuh"

namespace splitserve::cuda {

// Sums of kRows rows and a warpgroup's 64 outputs, of which this warp has 16: of these a lane holds lane / 4
// and, where the number of a sum has bit 1, the eighth behind, and of every 8 rows those from 2 * (lane % 4)
// on.
template <typename Product, int kRows>
class WideSums {
 public:
  using Sum = typename Product::Sum;
  // Sums of the rows of a stage's groups, which warps compute for each other.
  using RowSums = float[4][kRows];

  // Adds the products of a stage with the pair-th 16 outputs of the panel.
  __device__ void multiply(const CodedWeightArgs& weight, const StageView& stage, int pair,
                           RowSums& row_sums) {
    if constexpr (!Product::kHasGroups) {
      add_steps(weight, stage, pair, sums_, true);
    } else {
      const bool is_large = weight.group >= Product::kStageInputs;
      if (weight.has_offsets) sum_rows(weight, stage, is_large, row_sums);
      if (is_large) {
        add_steps(weight, stage, pair, parts_.products, !parts_.is_new);
        parts_.is_new = stage.ends_group;
        if (stage.ends_group) scale(stage.scales, pair, parts_.products);
      } else {
        for_groups<Product>(weight, [&]<Inputs kWhich>(int step, int group) {
          add_step<kWhich>(weight, stage, step, pair, parts_.products, false);
          scale(group_scales(weight, stage, group), pair, parts_.products);
        });
      }
      if (!weight.has_offsets || !stage.ends_group) return;
      __syncthreads();
      if (is_large) return scale_rows(stage.scales + kCodedCols, pair, row_sums[0]);
      for_groups<Product>(weight, [&]<Inputs kWhich>(int, int group) {
        scale_rows(group_scales(weight, stage, group) + kCodedCols, pair, row_sums[group]);
      });
    }
  }

  // Writes the sums, each row `stride` behind the one before.
  __device__ void write(Sum* to, int stride) const {
    to += lane() % 4 * 2 * stride + lane() / 4;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) to[(i / 4 * 8 + i % 2) * stride + i / 2 % 2 * 8] = sums_[i];
  }

 private:
  // Of the group that a stage is in: with the panel, and with ones for 8 of the rows.
  struct Parts {
    float products[kRows / 2], rows[4] = {};
    bool is_new = true;
  };
  struct NoParts {};

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  template <typename Of>
  __device__ static void multiply_rows(Of (&sums)[kRows / 2], const uint32_t (&a)[4], const StageView& stage,
                                       int index, bool adds) {
    warpgroup_mma<typename Product::Element, kRows, Product::kLineBytes>(sums, a, stage.rows, index, adds);
  }

  template <Inputs kWhich, typename Of>
  __device__ static void add_step(const CodedWeightArgs& weight, const StageView& stage, int step, int pair,
                                  Of (&sums)[kRows / 2], bool adds) {
    uint32_t operands[2][4];
    Product::template unpack<2>(weight.has_offsets, stage.codes + step * Product::kCodeBytes, 2 * pair,
                                operands);
    Operands a = as_rows(operands[0], operands[1]);
    warpgroup_begin(a.first, a.second, sums);
    if constexpr (kWhich != Inputs::kSecond) multiply_rows(sums, a.first, stage, 2 * step, adds);
    if constexpr (kWhich != Inputs::kFirst) {
      multiply_rows(sums, a.second, stage, 2 * step + 1, adds || kWhich == Inputs::kAll);
    }
    warpgroup_finish(sums);
  }

  template <typename Of>
  __device__ static void add_steps(const CodedWeightArgs& weight, const StageView& stage, int pair,
                                   Of (&sums)[kRows / 2], bool adds) {
    constexpr int kSteps = Product::kStageSteps;
    Operands a[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t operands[2][4];
      Product::template unpack<2>(weight.has_offsets, stage.codes + step * Product::kCodeBytes, 2 * pair,
                                  operands);
      a[step] = as_rows(operands[0], operands[1]);
      keep(a[step].first, a[step].second);
    }
    warpgroup_begin(sums);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply_rows(sums, a[step].first, stage, 2 * step, adds || step > 0);
      multiply_rows(sums, a[step].second, stage, 2 * step + 1, true);
    }
    warpgroup_finish(sums);
  }

  __device__ void scale(const float* scales, int pair, const float (&products)[kRows / 2]) {
    const float2 own = *reinterpret_cast<const float2*>(scales + lane() / 4 * kColTiles + 2 * pair);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i)
      sums_[i] = fmaf(products[i], i / 2 % 2 == 0 ? own.x : own.y, sums_[i]);
  }

  __device__ void scale_rows(const float* offsets, int pair, const float (&row_sums)[kRows]) {
    const float2 own = *reinterpret_cast<const float2*>(offsets + lane() / 4 * kColTiles + 2 * pair);
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      const float2 two = *reinterpret_cast<const float2*>(row_sums + i * 8 + lane() % 4 * 2);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& sum = sums_[4 * i + j];
        sum = fmaf(j % 2 == 0 ? two.x : two.y, j / 2 == 0 ? own.x : own.y, sum);
      }
    }
  }

  // The sums of 8 rows, this warp's, as a warp by itself would compute them.
  __device__ void sum_rows(const CodedWeightArgs& weight, const StageView& stage, bool is_large,
                           RowSums& row_sums) {
    const int first = static_cast<int>(threadIdx.x) / 32 * 8;
    if (first >= kRows) return;
    const auto add = [&]<Inputs kWhich>(int step, float (&sums)[4]) {
      Chunk rows;
      load_matrices(rows.words,
                    stage.rows + line_place<Product::kLineBytes>(first + lane() % 8, step * 4 + lane() / 8));
      Product::template add<kWhich>(sums, Product::all_ones(), rows.words);
    };
    const auto write = [&](int group, const float (&sums)[4]) {
      if (lane() >= 4) return;
      row_sums[group][first + lane() * 2] = sums[0];
      row_sums[group][first + lane() * 2 + 1] = sums[1];
    };
    if (!is_large) {
      for_groups<Product>(weight, [&]<Inputs kWhich>(int step, int group) {
        float sums[4] = {};
        add.template operator()<kWhich>(step, sums);
        write(group, sums);
      });
      return;
    }
#pragma unroll
    for (int step = 0; step < Product::kStageSteps; ++step) {
      add.template operator()<Inputs::kAll>(step, parts_.rows);
    }
    if (!stage.ends_group) return;
    write(0, parts_.rows);
    parts_.rows[0] = parts_.rows[1] = 0.0f;
  }

  Sum sums_[kRows / 2] = {};
  std::conditional_t<Product::kHasGroups, Parts, NoParts> parts_;
};

template <typename Product_, int kRows_, int kPanels_, int kCluster_>
struct WideShape {
  using Product = Product_;
  using Sum = typename Product::Sum;
  static constexpr int kRows = kRows_, kPanels = kPanels_, kCluster = kCluster_;
  using Sums = WideSums<Product, kRows>;
  static constexpr int kThreads = kPanels * 64, kCols = kPanels * static_cast<int>(kCodedCols);
  using Rows = RowCopies<Product, kRows, kThreads>;
  // Two warps copy a panel.
  using Codes = CodeCopies<Product, 64>;
  static constexpr int kRowBytes = kRows * Product::kLineBytes;
  static constexpr int kPanelBytes = Codes::kCodeBytes + Codes::kScaleBytes;
  static constexpr int kStageBytes = kRowBytes + kPanels * kPanelBytes;
  // What a thread block adds up by itself: a slice, or all of its inputs where sums are exact.
  static constexpr int kParts = Product::kIsExact ? 1 : Slices::kMost / kCluster;
  static constexpr int kPartSlices = Slices::kMost / kCluster / kParts;
  // Sums of a part in shared memory: rows at such distances that lanes meet different banks.
  static constexpr int kSumsStride = kCols + 4;
  static constexpr int kPartBytes = kRows * kSumsStride * 4;
  // 16 warps fit on a multiprocessor.
  static constexpr int kBlocks = 512 / kThreads;
  // The last part's sums are where stages were, those before it behind them.
  static constexpr int kOtherBytes = (kParts - 1) * kPartBytes;
  static constexpr int kRowSumsBytes = Product::kHasGroups ? sizeof(typename Sums::RowSums) : 0;
  static constexpr int kFitting = (shared_share(kBlocks) - kOtherBytes - kRowSumsBytes) / kStageBytes;
  static constexpr int kStages = kFitting > 6 ? 6 : kFitting;
  static_assert(kStages >= 3);
  static constexpr int kStagesBytes = kStages * kStageBytes;
  static constexpr int kFirstBytes = kPartBytes > kStagesBytes ? kPartBytes : kStagesBytes;
  static constexpr int64_t kSharedBytes = kFirstBytes + kOtherBytes + kRowSumsBytes + kLinesAlignment;
  static_assert(kSharedBytes <= kCodedSharedBytes);

  __device__ static Sum* part_place(char* memory, int part) {
    return reinterpret_cast<Sum*>(part == kParts - 1 ? memory : memory + kFirstBytes + part * kPartBytes);
  }
};

// Sums up a thread block's parts, each from its start.
template <typename Shape>
__device__ inline void sum_parts(const CodedLinearParams& p, const ExpertRows& tile, int64_t first_panel,
                                 char* memory) {
  using Product = typename Shape::Product;
  constexpr int kStages = Shape::kStages, kStageBytes = Shape::kStageBytes, kSteps = Product::kStageSteps;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const Slices slices(p.weight.steps);
  const int first = static_cast<int>(cluster_rank()) * Shape::kParts * Shape::kPartSlices;
  const int begin = slices.begin(first), end = slices.begin(first + Shape::kParts * Shape::kPartSlices);
  auto& row_sums =
      *reinterpret_cast<typename Shape::Sums::RowSums*>(memory + Shape::kFirstBytes + Shape::kOtherBytes);
  const int64_t panel = first_panel + warp / 2, last_panel = p.weight.panels - 1;
  typename Shape::Rows rows(p, tile, thread, begin);
  typename Shape::Codes codes(p.weight,
                              tile.expert * p.weight.panels + (panel < last_panel ? panel : last_panel),
                              thread % 64, begin);
  const int panel_place = Shape::kRowBytes + warp / 2 * Shape::kPanelBytes;
  const auto copy = [&](char* stage, int step) {
    if (step < end) {
      codes.copy(stage + panel_place);
      rows.copy(stage);
    }
    commit_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) copy(memory + i * kStageBytes, begin + i * kSteps);
  char *read = memory, *write = memory + (kStages - 1) * kStageBytes;
  int step = begin;
  for (int part = 0; part < Shape::kParts; ++part) {
    const int stop = slices.begin(first + (part + 1) * Shape::kPartSlices);
    typename Shape::Sums sums;
    for (; step < stop; step += kSteps) {
      wait_for_copies<kStages - 2>();
      __syncthreads();
      copy(write, step + (kStages - 1) * kSteps);
      sums.multiply(p.weight, view_of<Product>(p.weight, read, read + panel_place, thread % 32, step),
                    warp % 2, row_sums);
      write = read;
      read = read + kStageBytes == memory + Shape::kStagesBytes ? memory : read + kStageBytes;
    }
    if (part == Shape::kParts - 1) __syncthreads();
    sums.write(Shape::part_place(memory, part) + warp * 16, Shape::kSumsStride);
  }
}

template <typename Sum>
struct alignas(16) Four {
  Sum sums[4];
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    multiply_wide(const __grid_constant__ CodedLinearParams p, int64_t tiles) {
  using Sum = typename Shape::Sum;
  constexpr int kParts = Shape::kParts, kCluster = Shape::kCluster;
  const int64_t block = blockIdx.x / kCluster;
  ExpertRows tile;
  // The same for all blocks of a cluster.
  if (!find_tile<Shape::kRows>(p, block % tiles, &tile)) return;
  const int64_t first_panel = block / tiles * Shape::kPanels;
  char* memory = lines_in_shared();
  sum_parts<Shape>(p, tile, first_panel, memory);
  cluster_sync();
  const int count = Shape::Product::kIsExact ? kCluster : Slices(p.weight.steps).count();
  // A thread has four columns.
  constexpr int kOwnRows = Shape::kRows / kCluster, kThreadsPerRow = Shape::kCols / 4;
  static_assert(Shape::kThreads % kThreadsPerRow == 0);
  const int thread = static_cast<int>(threadIdx.x), col = thread % kThreadsPerRow * 4;
  const int first_row = static_cast<int>(cluster_rank()) * kOwnRows, last_row = first_row + kOwnRows;
  const CodedOutputs<4> outputs(p, tile.expert, first_panel * kCodedCols + col);
  for (int row = first_row + thread / kThreadsPerRow; row < last_row;
       row += Shape::kThreads / kThreadsPerRow) {
    if (tile.row + row >= tile.end) break;
    const int place = row * Shape::kSumsStride + col;
    Sum total[4] = {};
#pragma unroll
    for (int part = 0; part < kParts * kCluster; ++part) {
      if (part >= count) break;
      const Four<Sum> some = *reinterpret_cast<Four<Sum>*>(
          in_block(Shape::part_place(memory, part % kParts) + place, part / kParts));
#pragma unroll
      for (int i = 0; i < 4; ++i) total[i] = total[i] + some.sums[i];
    }
    outputs.write(p, tile.row + row, total);
  }
  // The others read what is here.
  cluster_sync();
}

template <typename Shape>
int64_t wide_blocks(const CodedLinearParams& p, int64_t tiles) {
  return tiles * ceil_div(p.weight.panels, Shape::kPanels) * Shape::kCluster;
}

template <typename Shape>
void launch_wide(const CodedLinearParams& p, cudaStream_t stream) {
  const int64_t tiles =
      p.starts == nullptr ? ceil_div(p.rows, Shape::kRows) : most_tiles(starts_of(p), Shape::kRows);
  const LaunchShape shape{wide_blocks<Shape>(p, tiles), Shape::kThreads, Shape::kSharedBytes,
                          Shape::kCluster};
  launch("coded_linear", multiply_wide<Shape>, shape, stream, p, tiles);
}

// The sizes decide how the work is shared, and no bit of the outputs.
template <typename Product>
void run_coded_wide(const CodedLinearParams& p, cudaStream_t stream) {
  if constexpr (Product::kIsExact) {
    // Without operands to make, it is the way to shared memory that bounds large products: larger tiles save
    // it.
    using Large = WideShape<Product, 128, 8, 1>;
    const int64_t blocks = wide_blocks<Large>(p, ceil_div(p.rows, Large::kRows));
    if (p.starts == nullptr && blocks >= device_attribute(cudaDevAttrMultiProcessorCount)) {
      return launch_wide<Large>(p, stream);
    }
  }
  launch_wide<WideShape<Product, 64, 4, 4>>(p, stream);
}

}  // namespace splitserve::cuda
