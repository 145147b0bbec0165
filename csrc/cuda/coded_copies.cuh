// How rows and codes come to shared memory, stage by stage, by asynchronous copies.
#pragma once

#include "cuda/coded_products.cuh"
#include "cuda/expert_rows.cuh"

namespace splitserve::cuda {

// How a weight's steps are cut into slices, of whole groups and stages.
struct Slices {
  static constexpr int kMost = 8;

  int steps, size;

  __device__ explicit Slices(int64_t all_steps) : steps(static_cast<int>(all_steps)) {
    constexpr int kUnit = kMost * kUnitSteps;
    size = (steps + kUnit - 1) / kUnit * kUnitSteps;
  }
  __device__ int count() const { return (steps + size - 1) / size; }
  // Where a slice begins, or the inputs end.
  __device__ int begin(int slice) const { return slice * size < steps ? slice * size : steps; }

 private:
  static constexpr int kUnitSteps = static_cast<int>(kLargestCodedGroup / step_inputs(CodeFormat::kInt4));
};

// A tile's rows, from some step on, to lines of shared memory (row_lines.h): each of some threads has 16
// bytes of a row in every stage, and of others at the same distances. Rows that are not there stay what they
// were: their sums are never written. What lies beyond the last input becomes zero.
template <typename Product, int kRows, int kThreads>
class RowCopies {
 public:
  __device__ RowCopies(const CodedLinearParams& p, const ExpertRows& tile, int thread, int step)
      : row_(thread / kPieces), piece_(thread % kPieces) {
    const int offset = step * static_cast<int>(kStepRowBytes) + piece_ * 16;
    const int64_t row = tile.row + row_, stride = p.x_stride * kElement;
    const int64_t left = row_ < kRows ? (tile.end - row + kEvery - 1) / kEvery : 0;
    count_ = left < 0 ? 0 : left < kCount ? static_cast<int>(left) : kCount;
    left_ = static_cast<int>(p.weight.depth) * kElement - offset;
    from_ = static_cast<const char*>(p.x) + row * stride + offset;
    stride_ = kEvery * stride;
  }

  // To the next stage.
  __device__ void copy(char* to) {
    const int bytes = left_ < 16 ? (left_ < 0 ? 0 : left_) : 16;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i >= count_) continue;
      copy_async(to + line_place<Product::kLineBytes>(row_ + i * kEvery, piece_), from_ + i * stride_, bytes);
    }
    from_ += Product::kLineBytes;
    left_ -= Product::kLineBytes;
  }

 private:
  static constexpr int kElement = Product::kIsExact ? 1 : 2;
  static constexpr int kPieces = Product::kLineBytes / 16, kEvery = kThreads / kPieces;
  static constexpr int kCount = kRows < kEvery ? 1 : kRows / kEvery;

  const char* from_;
  int64_t stride_;
  int row_, piece_, count_, left_;
};

// A panel's codes, from some step on, and the scales of their groups behind them. What lies beyond the last
// step becomes zero.
template <typename Product, int kThreads>
class CodeCopies {
 public:
  static constexpr int kCodeBytes = Product::kStageSteps * Product::kCodeBytes;
  // At most four groups with offsets.
  static constexpr int kScaleBytes = Product::kHasGroups ? 4 * 2 * static_cast<int>(kScaleRowBytes) : 0;

  __device__ CodeCopies(const CodedWeightArgs& weight, int64_t panel, int thread, int step)
      : place_(thread * 16) {
    const int steps = static_cast<int>(weight.steps);
    from_ = weight.codes + (panel * weight.steps + step) * Product::kCodeBytes + place_;
    left_ = (steps - step) * Product::kCodeBytes - place_;
    if constexpr (Product::kHasGroups) {
      const int group = static_cast<int>(weight.group);
      const int row_bytes = (weight.has_offsets ? 2 : 1) * static_cast<int>(kScaleRowBytes);
      const bool is_large = group > Product::kStageInputs;
      scale_bytes_ = is_large ? row_bytes : Product::kStageInputs / group * row_bytes;
      shift_ = is_large ? 1 : 0;
      stage_ = step / Product::kStageSteps;
      scales_left_ = static_cast<int>(weight.groups) * row_bytes - place_;
      scales_ = reinterpret_cast<const char*>(weight.scales) + panel * weight.groups * row_bytes + place_;
    }
  }

  // To the next stage.
  __device__ void copy(char* to) {
#pragma unroll
    for (int i = 0; i < kCodeBytes; i += kThreads * 16) {
      if (kCodeBytes < kThreads * 16 && place_ >= kCodeBytes) continue;
      copy_async(to + place_ + i, from_ + i, left_ > i ? 16 : 0);
    }
    from_ += kCodeBytes;
    left_ -= kCodeBytes;
    if constexpr (Product::kHasGroups) {
      const int begin = (stage_ >> shift_) * scale_bytes_;
#pragma unroll
      for (int i = 0; i < kScaleBytes; i += kThreads * 16) {
        if (place_ + i >= scale_bytes_) continue;
        copy_async(to + kCodeBytes + place_ + i, scales_ + begin + i, scales_left_ > begin + i ? 16 : 0);
      }
      ++stage_;
    }
  }

 private:
  const char* from_;
  const char* scales_;
  int place_, left_, scale_bytes_, scales_left_, shift_, stage_;
};

}  // namespace splitserve::cuda
