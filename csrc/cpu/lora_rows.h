// The two products of adapters in vector registers: a few rows of one adapter pass its matrices side by side.
#pragma once

#include "cpu/dot_step.h"
#include "cpu/lora_blocks.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows of one pass over a matrix, and registers of outputs in it.
inline constexpr int kPassRows = kLanes == 16 ? 4 : 2, kPassVecs = 4;
static_assert(kLoraCols % (kPassVecs * kLanes) == 0);
// How far ahead of its use a matrix is fetched.
inline constexpr int64_t kAheadBytes = 4096;

// Fetches `bytes` of what comes so far behind p.
SPLITSERVE_INLINE void fetch_ahead(const void* p, int64_t bytes) {
  const char* ahead = static_cast<const char*>(p) + kAheadBytes;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
}

// x . a of kRows rows, for kLanes outputs from `column` on.
template <typename T, int kRows>
void shrink(const LoraParams& p, const int32_t* rows, int64_t slot, int64_t column) {
  using Step = DotStep<T>;
  const T* x[kRows];
  for (int i = 0; i < kRows; ++i) x[i] = static_cast<const T*>(p.x) + rows[i] * p.x_stride;
  Vec sums[kRows][kLoraChains] = {};
  const int64_t step_size = p.rank * Step::kPair, steps = p.depth / Step::kPair;
  const T* a = static_cast<const T*>(p.a) + slot * p.a_stride + column * Step::kPair;
  const auto add = [&](int chain, const auto& inputs) __attribute__((always_inline)) {
    const typename Step::Operand weights = Step::load(a);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) sums[i][chain] = Step::accumulate(sums[i][chain], weights, inputs(i));
    a += step_size;
  };
  int64_t step = 0;
  for (; step + kLoraChains <= steps; step += kLoraChains) {
    if (column == 0) fetch_ahead(a, kLoraChains * step_size * static_cast<int64_t>(sizeof(T)));
#pragma GCC unroll 4
    for (int chain = 0; chain < kLoraChains; ++chain) {
      add(chain, [&](int i) __attribute__((always_inline)) {
        return Step::broadcast(x[i] + (step + chain) * Step::kPair);
      });
    }
  }
  for (; step * Step::kPair < p.depth; ++step) {
    const int64_t k = step * Step::kPair;
    add(static_cast<int>(step % kLoraChains), [&](int i) { return broadcast_end(x[i] + k, p.depth - k); });
  }
  for (int i = 0; i < kRows; ++i) {
    const Vec sum = (sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3]);
    store(p.inner + rows[i] * p.rank + column, sum * p.scales[slot]);
  }
}

// Weights of kLanes outputs, of one rank or of two that are neighbours, as floats.
SPLITSERVE_INLINE void load_ranks(const float* b, Vec (&weights)[1]) { weights[0] = load(b); }
SPLITSERVE_INLINE void load_ranks(const BFloat16* b, Vec (&weights)[2]) {
  UintVec pairs;
  std::memcpy(&pairs, b, sizeof pairs);
  weights[0] = as_float(pairs << 16);
  weights[1] = as_float(pairs & 0xffff0000u);
}

// Fetches kCols outputs of a row, which are added to next, from `col` on: after a large product they are in
// no cache.
template <typename Out, int64_t kCols>
SPLITSERVE_INLINE void fetch_outputs(const LoraParams& p, int64_t row, int64_t col) {
  if (col >= p.cols) return;
  const Out* const out = static_cast<const Out*>(p.out) + row * p.out_stride + col;
  for (int64_t i = 0; i < kCols; i += 64 / static_cast<int64_t>(sizeof(Out))) __builtin_prefetch(out + i, 1);
}

// Adds inner . b of kRows rows to kPassVecs registers of outputs from `col` on.
template <typename T, typename Out, int kRows>
void expand(const LoraParams& p, const int32_t* rows, int64_t slot, int64_t col) {
  constexpr int kPair = DotStep<T>::kPair;
  Vec sums[kRows][kPassVecs] = {};
  const T* b = static_cast<const T*>(p.b) + slot * p.b_stride;
  b += col / kLoraCols * p.rank * kLoraCols + col % kLoraCols * kPair;
  const int64_t left = p.cols - col;
  constexpr int64_t kPassCols = kPassVecs * kLanes;
  for (int i = 0; i < kRows; ++i) fetch_outputs<Out, kPassCols>(p, rows[i], col + kPassCols);
  for (int64_t j = 0; j < p.ranks[slot]; j += kPair, b += kLoraCols * kPair) {
    fetch_ahead(b, kPassVecs * kLanes * kPair * sizeof(T));
#pragma GCC unroll 4
    for (int v = 0; v < kPassVecs; ++v) {
      Vec weights[kPair];
      load_ranks(b + v * kLanes * kPair, weights);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const float* inner = p.inner + rows[i] * p.rank + j;
#pragma GCC unroll 2
        for (int one = 0; one < kPair; ++one)
          sums[i][v] = fma(weights[one], broadcast(inner[one]), sums[i][v]);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    Out* out = static_cast<Out*>(p.out) + rows[i] * p.out_stride + col;
    for (int v = 0; v < kPassVecs && left > v * kLanes; ++v, out += kLanes) {
      const int64_t n = left - v * kLanes;
      store_up_to(out, load_up_to(out, n) + sums[i][v], n);
    }
  }
}

// Calls fn.operator()<kRows>(rows) for passes over the rows of a block.
template <typename Fn>
void in_passes(const LoraBlock& block, const Fn& fn) {
  int64_t i = 0;
  for (; i + kPassRows <= block.count; i += kPassRows) fn.template operator()<kPassRows>(block.rows + i);
  switch (block.count - i) {
    case 3:
      return fn.template operator()<3>(block.rows + i);
    case 2:
      return fn.template operator()<2>(block.rows + i);
    case 1:
      return fn.template operator()<1>(block.rows + i);
  }
}

// Multiplies the rows of blocks; belongs to a thread and its part of the tasks.
template <typename T>
struct LoraProducts {
  void shrink(const LoraParams& p, const LoraBlock& block) {
    for (int64_t column = 0; column < p.ranks[block.slot]; column += kLanes) {
      in_passes(block, [&]<int kRows>(const int32_t* rows) {
        SPLITSERVE_ISA::shrink<T, kRows>(p, rows, block.slot, column);
      });
    }
  }

  // Of outputs [begin, end), from a multiple of kLoraCols on.
  template <typename Out>
  void expand(const LoraParams& p, const LoraBlock& block, int64_t begin, int64_t end) {
    for (int64_t col = begin; col < end; col += kPassVecs * kLanes) {
      in_passes(block, [&]<int kRows>(const int32_t* rows) {
        SPLITSERVE_ISA::expand<T, Out, kRows>(p, rows, block.slot, col);
      });
    }
  }
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
