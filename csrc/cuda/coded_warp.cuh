// What a single warp multiplies of a stage: 8 or 16 rows with a panel.
#pragma once

#include "cuda/coded_products.cuh"

namespace splitserve::cuda {

// Sums of kRows rows and 32 outputs. Outputs are the rows of the instructions, of which 8 rows of activations
// so take half as many as they would as the only rows of 16: of each 16 outputs a lane holds lane / 4 (and +
// 8), of every 8 rows those from 2 * (lane % 4) on.
template <typename Product, int kRows>
class WarpSums {
 public:
  using Sum = typename Product::Sum;
  static constexpr int kEights = kRows / 8;
  // Of 16 outputs.
  static constexpr int kTiles = kColTiles / 2;

  // Adds the products of a stage.
  __device__ void multiply(const CodedWeightArgs& weight, const StageView& stage, int lane) {
    if constexpr (!Product::kHasGroups) {
      add_steps(weight, stage, lane, sums_);
    } else if (weight.group >= Product::kStageInputs) {
      add_steps(weight, stage, lane, parts_.products);
      if (weight.has_offsets) {
#pragma unroll
        for (int step = 0; step < Product::kStageSteps; ++step) {
          add_rows<Inputs::kAll>(stage, step, lane, parts_.rows);
        }
      }
      if (!stage.ends_group) return;
      scale(stage.scales, lane, parts_.products);
      if (weight.has_offsets) scale_rows(stage.scales + kCodedCols, lane, parts_.rows);
      parts_ = {};
    } else {
      for_groups<Product>(weight, [&]<Inputs kWhich>(int step, int group) {
        float products[kEights][kTiles][4] = {};
        add_step<kWhich>(weight, stage, step, lane, products);
        scale(group_scales(weight, stage, group), lane, products);
      });
      if (!weight.has_offsets) return;
      for_groups<Product>(weight, [&]<Inputs kWhich>(int step, int group) {
        float rows[kEights][4] = {};
        add_rows<kWhich>(stage, step, lane, rows);
        scale_rows(group_scales(weight, stage, group) + kCodedCols, lane, rows);
      });
    }
  }

  // Writes the sums, each row `stride` behind the one before.
  __device__ void write(Sum* to, int stride, int lane) const {
    to += lane % 4 * 2 * stride + lane / 4;
    for_sums([&](int eight, int tile, int j) {
      to[(eight * 8 + j % 2) * stride + tile * 16 + j / 2 * 8] = sums_[eight][tile][j];
    });
  }

 private:
  // Of the group that a stage is in: with a panel, and with ones.
  struct Parts {
    float products[kEights][kTiles][4], rows[kEights][4];
  };
  struct NoParts {};

  template <typename Visit>
  __device__ static void for_sums(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kEights * kTiles * 4; ++i) visit(i / (kTiles * 4), i / 4 % kTiles, i % 4);
  }

  // The operand of 8 rows in a step.
  __device__ static Chunk load_rows(const StageView& stage, int step, int eight, int lane) {
    Chunk rows;
    const int place = line_place<Product::kLineBytes>(eight * 8 + lane % 8, step * 4 + lane / 8);
    load_matrices(rows.words, stage.rows + place);
    return rows;
  }

  template <Inputs kWhich, typename Of>
  __device__ static void add_step(const CodedWeightArgs& weight, const StageView& stage, int step, int lane,
                                  Of (&sums)[kEights][kTiles][4]) {
    uint32_t operands[kColTiles][4];
    Product::template unpack<kColTiles>(weight.has_offsets, stage.codes + step * Product::kCodeBytes, 0,
                                        operands);
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const Chunk rows = load_rows(stage, step, eight, lane);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const Operands outputs = as_rows(operands[2 * tile], operands[2 * tile + 1]);
        Product::template add<kWhich>(sums[eight][tile], outputs, rows.words);
      }
    }
  }

  template <typename Of>
  __device__ static void add_steps(const CodedWeightArgs& weight, const StageView& stage, int lane,
                                   Of (&sums)[kEights][kTiles][4]) {
#pragma unroll
    for (int step = 0; step < Product::kStageSteps; ++step) {
      add_step<Inputs::kAll>(weight, stage, step, lane, sums);
    }
  }

  // The sums of rows.
  template <Inputs kWhich>
  __device__ static void add_rows(const StageView& stage, int step, int lane, float (&sums)[kEights][4]) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      Product::template add<kWhich>(sums[eight], Product::all_ones(),
                                    load_rows(stage, step, eight, lane).words);
    }
  }

  // A group's scales of this lane's outputs, or its offsets.
  __device__ static void load_factors(const float* factors, int lane, float (&own)[kColTiles]) {
    const float4 four = *reinterpret_cast<const float4*>(factors + lane / 4 * kColTiles);
    own[0] = four.x, own[1] = four.y, own[2] = four.z, own[3] = four.w;
  }

  __device__ void scale(const float* scales, int lane, const float (&products)[kEights][kTiles][4]) {
    float own[kColTiles];
    load_factors(scales, lane, own);
    for_sums([&](int eight, int tile, int j) {
      float& sum = sums_[eight][tile][j];
      sum = fmaf(products[eight][tile][j], own[2 * tile + j / 2], sum);
    });
  }

  __device__ void scale_rows(const float* offsets, int lane, const float (&rows)[kEights][4]) {
    float own[kColTiles];
    load_factors(offsets, lane, own);
    for_sums([&](int eight, int tile, int j) {
      float& sum = sums_[eight][tile][j];
      sum = fmaf(rows[eight][j], own[2 * tile + j / 2], sum);
    });
  }

  Sum sums_[kEights][kTiles][4] = {};
  std::conditional_t<Product::kHasGroups, Parts, NoParts> parts_ = {};
};

}  // namespace splitserve::cuda
