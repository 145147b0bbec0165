// Linear layer on packed weights: out[t, n] = x[t] . weight[n] + bias[n]; and experts, each with its own
// rows.
#include "cpu/linear.h"

#include <algorithm>

#include "common/experts.h"
#include "cpu/group_sums.h"
#include "cpu/linear_gated.h"
#include "cpu/parallel.h"
#include "cpu/row_codes.h"
#include "cpu/row_floats.h"
#include "cpu/row_words.h"
#include "cpu/scratch.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows [first, end) of x in blocks that stay in the outer caches while all panels pass them: so many tasks
// for each block.
template <typename Format>
class RowBlocks {
 public:
  RowBlocks(const LinearParams& p, int64_t first, int64_t end, int64_t tasks, int64_t most)
      : first_(first), rows_(end - first), tasks_(tasks) {
    using Rows = BlockRows<Format>;
    int64_t most_rows = Rows::kBytes / (p.depth * static_cast<int64_t>(sizeof(typename Format::X)) + 1);
    if (most_rows < Rows::kLeastRows) most_rows = Rows::kLeastRows;
    if (most_rows > most) most_rows = most;
    blocks_ = ceil_div(rows_, most_rows);
  }

  int64_t num_tasks() const { return blocks_ * tasks_; }

  int64_t panel_of_task(int64_t task) const { return task % tasks_; }

  // `next_panel` is the one that this thread works on afterwards.
  template <typename Products>
  void run(const LinearParams& p, int64_t task, int64_t next_panel, Products* products) const {
    const int64_t block = task / tasks_;
    products->run(p, first_ + rows_ * block / blocks_, first_ + rows_ * (block + 1) / blocks_,
                  {panel_of_task(task), next_panel});
  }

 private:
  int64_t first_, rows_, tasks_, blocks_;
};

// The task that a thread works on after `task` of [begin, end): threads take parts by turns.
int64_t task_after(int64_t task, int64_t begin, int64_t end) {
  return task + 1 < end ? task + 1 : begin + (end - begin) * num_threads();
}

// One expert's part of a call: its own weights, and all rows' places.
template <typename Format>
LinearParams params_of(const ExpertLinearParams& p, int64_t expert) {
  LinearParams own = p.linear;
  const int64_t panels = ceil_div(own.cols, kPanelCols);
  own.weight = panel_of<Format>(own, expert * panels);
  own.x = static_cast<const typename Format::X*>(own.x) + expert * p.x_expert_stride;
  own.out = static_cast<char*>(own.out) + expert * p.out_expert_stride * dtype_bytes(own.out_dtype);
  if (own.floats.floats != nullptr && p.starts == nullptr)
    own.floats.floats += expert * own.rows * own.floats.stride;
  own.groups.scales = own.groups.of_panel(expert * panels);
  if (own.scales != nullptr) own.scales += expert * own.cols;
  if (own.bias != nullptr) own.bias = static_cast<const typename Format::X*>(own.bias) + expert * own.cols;
  return own;
}

// The tasks of all experts, one expert after the other.
template <typename Format, typename Products>
void run_experts(const typename Products::Params& params) {
  const ExpertLinearParams& p = Products::products(params);
  const int64_t panels = ceil_div(p.linear.cols, kPanelCols), block_tasks = Products::tasks(p.linear);
  const auto blocks_of = [&](int64_t expert) {
    return RowBlocks<Format>(p.linear, p.first_row(expert), p.end_row(expert), block_tasks,
                             Products::kMostRows);
  };
  int64_t firsts[kMaxExperts + 1];  // first task of each expert
  firsts[0] = 0;
  for (int64_t expert = 0; expert < p.experts; ++expert)
    firsts[expert + 1] = firsts[expert] + blocks_of(expert).num_tasks();
  const auto expert_of = [&](int64_t task, int64_t expert) {
    while (firsts[expert + 1] <= task) ++expert;
    return expert;
  };
  const int64_t passes = p.starts == nullptr ? p.experts : 1;
  const int64_t tasks = firsts[p.experts], work = passes * p.linear.rows * p.linear.cols * p.linear.depth;
  parallel_for(tasks, work, [&](int64_t begin, int64_t end) {
    const StreamFence fence;
    Products products(params);
    for (int64_t task = begin, expert = 0; task < end;) {
      expert = expert_of(task, expert);
      const LinearParams own = params_of<Format>(p, expert);
      const RowBlocks<Format> blocks = blocks_of(expert);
      for (; task < end && task < firsts[expert + 1]; ++task) {
        const int64_t after = task_after(task, begin, end), next = after < tasks ? after : task;
        const int64_t next_expert = expert_of(next, expert);
        // Panels of all experts lie one behind the other.
        const int64_t panel = blocks.panel_of_task(next - firsts[next_expert]);
        blocks.run(own, task - firsts[expert], (next_expert - expert) * panels + panel, &products);
      }
    }
  });
}

// Whether a block of rows of some expert is multiplied as floats that stand for its inputs.
template <typename Format>
bool takes_floats([[maybe_unused]] const ExpertLinearParams& p) {
  if constexpr (requires { BlockRows<Format>::takes_floats(0); }) {
    for (int64_t expert = 0; expert < p.experts; ++expert) {
      if (BlockRows<Format>::takes_floats(p.end_row(expert) - p.first_row(expert))) return true;
    }
  }
  return false;
}

// Floats that are made of the inputs of a row, if any are.
template <typename Format>
int64_t floats_of_row(const ExpertLinearParams& p) {
  return takes_floats<Format>(p) ? p.num_inputs() * float_stride(p.linear.depth) : 0;
}

// The same with what is made of the inputs for the format, valid until the thread's next call: their integers
// or floats, and the sums that offsets are multiplied with.
template <typename Format>
ExpertLinearParams prepared(ExpertLinearParams p) {
  LinearParams& own = p.linear;
  if constexpr (Format::kFormat == WeightFormat::kInt8Dot) {
    own = with_codes<typename Format::Dot::Input>(own);
#if defined(SPLITSERVE_MULTIPLIES_WORDS)
  } else if constexpr (requires { typename Format::Dot; }) {
    own = with_words<Format>(own);
#endif
  } else {
    bool has_sums = false;
    if constexpr (has_group_scales(Format::kFormat) && !kScalesWeights<Format>)
      has_sums = own.groups.has_offsets || Format::kZero != 0;
    const int64_t num_floats = own.rows * floats_of_row<Format>(p),
                  num_sums = has_sums ? own.rows * own.groups.count : 0;
    float* const memory =
        static_cast<float*>(scratch((num_floats + num_sums) * static_cast<int64_t>(sizeof(float))));
    if (num_floats > 0) own.floats = make_row_floats(p, memory);
    if (has_sums) {
      sum_groups(own, memory + num_floats);
      own.groups.row_sums = memory + num_floats;
    }
  }
  return p;
}

// Rows [first, end) of a call, of whose experts `starts` is filled with their own.
template <typename Format>
ExpertLinearParams rows_of(ExpertLinearParams p, int64_t first, int64_t end, int32_t* starts) {
  LinearParams& own = p.linear;
  if (p.starts != nullptr) {
    for (int64_t expert = 0; expert <= p.experts; ++expert)
      starts[expert] = static_cast<int32_t>(std::clamp<int64_t>(p.starts[expert], first, end) - first);
    p.starts = starts;
  }
  own.x = static_cast<const typename Format::X*>(own.x) + first * own.x_stride;
  if (own.out != nullptr)
    own.out = static_cast<char*>(own.out) + first * own.out_stride * dtype_bytes(own.out_dtype);
  own.rows = end - first;
  return p;
}

// Bytes that are made of the inputs of a row, but for sums and scales.
template <typename Format>
int64_t prepared_bytes([[maybe_unused]] const ExpertLinearParams& p) {
  if constexpr (Format::kFormat == WeightFormat::kInt8Dot) {
    return p.linear.depth * static_cast<int64_t>(sizeof(typename Format::Dot::Input));
#if defined(SPLITSERVE_MULTIPLIES_WORDS)
  } else if constexpr (requires { typename Format::Dot; }) {
    return p.linear.depth * Format::Dot::kWordBytes;
#endif
  } else {
    return floats_of_row<Format>(p) * static_cast<int64_t>(sizeof(float));
  }
}

// Calls fn(rows, first) for the rows of a call that are multiplied, from row `first` on, with what is made of
// their inputs: for as many at once as do not take much more memory for that than kMostPreparedBytes.
template <typename Format, typename Fn>
void in_slices(const ExpertLinearParams& p, const Fn& fn) {
  constexpr int64_t kMostPreparedBytes = 16 << 20;
  const int64_t begin = p.first_row(0), end = p.end_row(p.experts - 1), rows = end - begin;
  if (rows == 0) return;
  const int64_t row_bytes = std::max<int64_t>(prepared_bytes<Format>(p), 1),
                most_rows = std::clamp<int64_t>(kMostPreparedBytes / row_bytes, 1, rows),
                each = ceil_div(rows, ceil_div(rows, most_rows));
  if (each == p.linear.rows) return fn(prepared<Format>(p), int64_t{0});
  int32_t starts[kMaxExperts + 1];
  for (int64_t first = begin; first < end; first += each)
    fn(prepared<Format>(rows_of<Format>(p, first, std::min(first + each, end), starts)), first);
}

// Calls fn with the format by which this processor multiplies int8 with int8.
template <typename Fn>
void with_dot_format(const Fn& fn) {
#if defined(SPLITSERVE_MAY_USE_VNNI)
  if (uses_vnni()) return fn(ByteDotWeights());
#endif
  fn(Int8DotWeights());
}

// The formats of codes of 4, 6 and 8 bits that are multiplied with words, or with floats.
#if defined(SPLITSERVE_MULTIPLIES_WORDS)
template <typename Dot, typename UnitDot, typename Fn>
void with_words_of(const LinearParams& p, const Fn& fn) {
  switch (p.format) {
    case WeightFormat::kInt8:
      return fn(Int8Words<Dot>());
    case WeightFormat::kInt4:
      return fn(Int4Words<Dot>());
    case WeightFormat::kMxfp4:
      return fn(Mxfp4Words<Dot>());
    case WeightFormat::kInt8Groups:
      return fn(Int8GroupWords<Dot>());
    case WeightFormat::kInt6Groups:
      return p.groups.are_bytes ? fn(Int6UnitWords<UnitDot>()) : fn(Int6GroupWords<Dot>());
    default:
      return p.groups.are_bytes ? fn(Int4UnitWords<UnitDot>()) : fn(Int4GroupWords<Dot>());
  }
}

template <typename Fn>
void with_code_format(const LinearParams& p, const Fn& fn) {
#if defined(SPLITSERVE_MAY_USE_VNNI)
  if (!uses_vnni()) {
    if (p.takes_bytes) return fn(Int4GroupWords<ShortPairDot>());
    return with_words_of<PairDot, PairDot>(p, fn);
  }
#endif
  if (p.takes_bytes) return fn(Int4GroupWords<ShortDot>());
  with_words_of<ByteDot, VnniPairDot>(p, fn);
}
#else
template <typename Fn>
void with_code_format(const LinearParams& p, const Fn& fn) {
  switch (p.format) {
    case WeightFormat::kInt8:
      return fn(Int8Weights());
    case WeightFormat::kInt4:
      return fn(Int4Weights());
    case WeightFormat::kMxfp4:
      return fn(Mxfp4Weights());
    case WeightFormat::kInt8Groups:
      return fn(Int8GroupWeights());
    case WeightFormat::kInt6Groups:
      return fn(Int6GroupWeights());
    default:
      return fn(Int4GroupWeights());
  }
}
#endif

// Calls fn with a value of the format's type.
template <typename Fn>
void with_format(const LinearParams& p, const Fn& fn) {
  switch (p.format) {
    case WeightFormat::kFloat32:
      return fn(Float32Weights());
    case WeightFormat::kBFloat16:
      return fn(BFloat16Weights());
    case WeightFormat::kFp8Groups:
      return fn(Fp8GroupWeights());
    case WeightFormat::kInt8Dot:
      return with_dot_format(fn);
    default:
      return with_code_format(p, fn);
  }
}

}  // namespace

void linear(const LinearParams& params) {
  ExpertLinearParams only{};
  only.linear = params;
  only.experts = 1;
  expert_linear(only);
}

void expert_linear(const ExpertLinearParams& params) {
  with_format(params.linear, [&](auto format) {
    using Format = decltype(format);
    in_slices<Format>(params, [](const ExpertLinearParams& own, int64_t) {
      run_experts<Format, PlainProducts<Format>>(own);
    });
  });
}

void gated_linear(const GatedLinearParams& params) {
  with_format(params.products.linear, [&](auto format) {
    using Format = decltype(format);
    GatedLinearParams own = params;
    in_slices<Format>(params.products, [&](const ExpertLinearParams& products, int64_t first) {
      own.products = products;
      own.out = static_cast<typename Format::X*>(params.out) + first * params.out_stride;
      run_experts<Format, GatedProducts<Format>>(own);
    });
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
