// Linear layer on packed weights: out[t, n] = x[t] . weight[n] + bias[n]; and experts, each with its own
// rows.
#include "cpu/linear.h"

#include "common/experts.h"
#include "cpu/group_sums.h"
#include "cpu/linear_decoded.h"
#include "cpu/linear_rows.h"
#include "cpu/linear_tiles.h"
#include "cpu/parallel.h"
#include "cpu/row_codes.h"
#include "cpu/scratch.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows [first, end) of x in blocks that stay in the outer caches while all panels pass them: a task for each
// block and panel.
template <typename Format>
class RowBlocks {
 public:
  RowBlocks(const LinearParams& p, int64_t first, int64_t end)
      : first_(first), rows_(end - first), panels_(ceil_div(p.cols, kPanelCols)) {
    using Rows = BlockRows<Format>;
    int64_t most_rows = Rows::kBytes / (p.depth * static_cast<int64_t>(sizeof(typename Format::X)) + 1);
    if (most_rows < Rows::kLeastRows) most_rows = Rows::kLeastRows;
    if (most_rows > Rows::kMostRows) most_rows = Rows::kMostRows;
    blocks_ = ceil_div(rows_, most_rows);
  }

  int64_t num_tasks() const { return blocks_ * panels_; }

  int64_t panel_of_task(int64_t task) const { return task % panels_; }

  // `next_panel` is the one that this thread works on afterwards.
  void run(const LinearParams& p, int64_t task, int64_t next_panel, BlockRows<Format>* rows) const {
    const int64_t block = task / panels_;
    rows->multiply(p, first_ + rows_ * block / blocks_, first_ + rows_ * (block + 1) / blocks_,
                   {panel_of_task(task), next_panel});
  }

 private:
  int64_t first_, rows_, panels_, blocks_;
};

// The task that a thread works on after `task` of [begin, end): threads take parts by turns.
int64_t task_after(int64_t task, int64_t begin, int64_t end) {
  return task + 1 < end ? task + 1 : begin + (end - begin) * num_threads();
}

template <typename Format>
void run(const LinearParams& p) {
  const RowBlocks<Format> blocks(p, 0, p.rows);
  parallel_for(blocks.num_tasks(), p.rows * p.cols * p.depth, [&](int64_t begin, int64_t end) {
    const StreamFence fence;
    BlockRows<Format> rows;
    for (int64_t task = begin; task < end; ++task) {
      blocks.run(p, task, blocks.panel_of_task(task_after(task, begin, end)), &rows);
    }
  });
}

// One expert's part of a call: its own weights, and all rows' places.
template <typename Format>
LinearParams params_of(const ExpertLinearParams& p, int64_t expert) {
  LinearParams own = p.linear;
  const int64_t panels = ceil_div(own.cols, kPanelCols);
  own.weight = panel_of<Format>(own, expert * panels);
  own.x = static_cast<const typename Format::X*>(own.x) + expert * p.x_expert_stride;
  own.out = static_cast<char*>(own.out) + expert * p.out_expert_stride * dtype_bytes(own.out_dtype);
  own.groups.scales = own.groups.of_panel(expert * panels);
  if (own.scales != nullptr) own.scales += expert * own.cols;
  if (own.bias != nullptr) own.bias = static_cast<const typename Format::X*>(own.bias) + expert * own.cols;
  return own;
}

// The tasks of all experts, one expert after the other.
template <typename Format>
void run_experts(const ExpertLinearParams& p) {
  const int64_t panels = ceil_div(p.linear.cols, kPanelCols);
  int64_t firsts[kMaxExperts + 1];  // first task of each expert
  firsts[0] = 0;
  for (int64_t expert = 0; expert < p.experts; ++expert) {
    const RowBlocks<Format> blocks(p.linear, p.first_row(expert), p.end_row(expert));
    firsts[expert + 1] = firsts[expert] + blocks.num_tasks();
  }
  const auto expert_of = [&](int64_t task, int64_t expert) {
    while (firsts[expert + 1] <= task) ++expert;
    return expert;
  };
  const int64_t passes = p.starts == nullptr ? p.experts : 1;
  const int64_t tasks = firsts[p.experts], work = passes * p.linear.rows * p.linear.cols * p.linear.depth;
  parallel_for(tasks, work, [&](int64_t begin, int64_t end) {
    const StreamFence fence;
    BlockRows<Format> rows;
    for (int64_t task = begin, expert = 0; task < end;) {
      expert = expert_of(task, expert);
      const LinearParams own = params_of<Format>(p, expert);
      const RowBlocks<Format> blocks(own, p.first_row(expert), p.end_row(expert));
      for (; task < end && task < firsts[expert + 1]; ++task) {
        const int64_t after = task_after(task, begin, end), next = after < tasks ? after : task;
        const int64_t next_expert = expert_of(next, expert);
        // Panels of all experts lie one behind the other.
        const int64_t panel = blocks.panel_of_task(next - firsts[next_expert]);
        blocks.run(own, task - firsts[expert], (next_expert - expert) * panels + panel, &rows);
      }
    }
  });
}

// The same with the sums of inputs that offsets are multiplied with, valid until the thread's next call.
template <typename Format>
LinearParams with_row_sums(LinearParams p) {
  if (kScalesWeights<Format>) return p;
  if (!p.groups.has_offsets && Format::kZero == 0) return p;
  float* sums = static_cast<float*>(scratch(p.rows * p.groups.count * static_cast<int64_t>(sizeof(float))));
  sum_groups(p, sums);
  p.groups.row_sums = sums;
  return p;
}

ExpertLinearParams with(ExpertLinearParams experts, const LinearParams& linear) {
  experts.linear = linear;
  return experts;
}

}  // namespace

void linear(const LinearParams& params) {
  switch (params.format) {
    case WeightFormat::kFloat32:
      return run<Float32Weights>(params);
    case WeightFormat::kBFloat16:
      return run<BFloat16Weights>(params);
    case WeightFormat::kInt8:
      return run<Int8Weights>(params);
    case WeightFormat::kInt4:
      return run<Int4Weights>(params);
    case WeightFormat::kMxfp4:
      return run<Mxfp4Weights>(params);
    case WeightFormat::kInt8Groups:
      return run<Int8GroupWeights>(with_row_sums<Int8GroupWeights>(params));
    case WeightFormat::kFp8Groups:
      return run<Fp8GroupWeights>(params);
    case WeightFormat::kInt4Groups:
      return run<Int4GroupWeights>(with_row_sums<Int4GroupWeights>(params));
    case WeightFormat::kInt8Dot:
      return run<Int8DotWeights>(with_codes(params));
  }
}

void expert_linear(const ExpertLinearParams& params) {
  switch (params.linear.format) {
    case WeightFormat::kFloat32:
      return run_experts<Float32Weights>(params);
    case WeightFormat::kBFloat16:
      return run_experts<BFloat16Weights>(params);
    case WeightFormat::kInt8:
      return run_experts<Int8Weights>(params);
    case WeightFormat::kInt4:
      return run_experts<Int4Weights>(params);
    case WeightFormat::kMxfp4:
      return run_experts<Mxfp4Weights>(params);
    case WeightFormat::kInt8Groups:
      return run_experts<Int8GroupWeights>(with(params, with_row_sums<Int8GroupWeights>(params.linear)));
    case WeightFormat::kFp8Groups:
      return run_experts<Fp8GroupWeights>(params);
    case WeightFormat::kInt4Groups:
      return run_experts<Int4GroupWeights>(with(params, with_row_sums<Int4GroupWeights>(params.linear)));
    case WeightFormat::kInt8Dot:
      return run_experts<Int8DotWeights>(with(params, with_codes(params.linear)));
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
