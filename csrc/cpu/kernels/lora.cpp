// Adapters' deltas: rows of one adapter are multiplied with its matrices side by side, so that these are read
// once for several rows.
//
// Every lane of the sums is a result of its own, and the order in which it is summed depends on depth or rank
// alone: a row has the same bits beside any others.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows of one task, and of one pass over a matrix.
inline constexpr int64_t kBlockRows = 16;
inline constexpr int kPassRows = 4;
// Sums over depth have so many chains, since one addition waits for the last.
inline constexpr int kChains = 4;
// Inputs that are converted to float at a time, and outputs of a task.
inline constexpr int64_t kStretch = 512;
inline constexpr int64_t kTaskCols = 512;
// Registers of outputs in a pass.
inline constexpr int kPassVecs = 4;
static_assert(kTaskCols % kLoraCols == 0 && kLoraCols % (kPassVecs * kLanes) == 0);
// How far ahead of its use a matrix is fetched. An adapter's matrices lie one behind the other, in the order
// in which the layers need them.
inline constexpr int64_t kAheadBytes = 4096;

// Fetches `bytes` of what comes so far behind p.
SPLITSERVE_INLINE void fetch_ahead(const void* p, int64_t bytes) {
  const char* ahead = static_cast<const char*>(p) + kAheadBytes;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
}

// Up to kBlockRows rows of one adapter.
struct Block {
  const int32_t* rows;
  int64_t count;
  int64_t slot;
};

// The rows by adapter, in p.order, and in which block each task works.
class Blocks {
 public:
  explicit Blocks(const LoraParams& p) : order_(p.order) {
    int32_t next[kMaxAdapters] = {};
    for (int64_t row = 0; row < p.rows; ++row) {
      if (p.slots[row] >= 0) ++next[p.slots[row]];
    }
    int32_t place = 0;
    int64_t blocks = 0;
    for (int64_t slot = 0; slot < p.adapters; ++slot) {
      const int32_t count = p.ranks[slot] > 0 ? next[slot] : 0;
      starts_[slot] = next[slot] = place;
      firsts_[slot] = blocks;
      place += count;
      blocks += (count + kBlockRows - 1) / kBlockRows;
    }
    starts_[p.adapters] = place;
    firsts_[p.adapters] = blocks;
    for (int64_t row = 0; row < p.rows; ++row) {
      const int32_t slot = p.slots[row];
      if (slot >= 0 && p.ranks[slot] > 0) p.order[next[slot]++] = static_cast<int32_t>(row);
    }
    count_ = blocks;
    num_rows_ = place;
  }

  int64_t count() const { return count_; }
  int64_t num_rows() const { return num_rows_; }

  Block operator[](int64_t block) const {
    int64_t slot = 0;
    while (firsts_[slot + 1] <= block) ++slot;
    const int64_t first = starts_[slot] + (block - firsts_[slot]) * kBlockRows;
    const int64_t left = starts_[slot + 1] - first;
    return {order_ + first, left < kBlockRows ? left : kBlockRows, slot};
  }

 private:
  const int32_t* order_;
  int32_t starts_[kMaxAdapters + 1];
  int64_t firsts_[kMaxAdapters + 1];
  int64_t count_, num_rows_;
};

// x . a of kRows rows, for kLanes outputs from `column` on.
template <typename T, int kRows>
void shrink(const LoraParams& p, const int32_t* rows, int64_t slot, int64_t column) {
  alignas(64) float x[kRows][kStretch];
  Vec sums[kRows][kChains] = {};
  const T* a = static_cast<const T*>(p.a) + slot * p.a_stride + column;
  const int64_t step_bytes = kChains * p.rank * static_cast<int64_t>(sizeof(T));
  for (int64_t begin = 0; begin < p.depth; begin += kStretch) {
    const int64_t depth = p.depth - begin < kStretch ? p.depth - begin : kStretch;
    for (int i = 0; i < kRows; ++i) {
      const T* from = static_cast<const T*>(p.x) + rows[i] * p.x_stride + begin;
      for (int64_t k = 0; k < depth; k += kLanes)
        store_up_to(x[i] + k, load_up_to(from + k, depth - k), depth - k);
    }
    int64_t k = 0;
    for (; k + kChains <= depth; k += kChains) {
      if (column == 0) fetch_ahead(a, step_bytes);
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain, a += p.rank) {
        const Vec weights = load(a);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i)
          sums[i][chain] = fma(weights, broadcast(x[i][k + chain]), sums[i][chain]);
      }
    }
    for (int chain = 0; k < depth; ++k, ++chain, a += p.rank) {
      const Vec weights = load(a);
      for (int i = 0; i < kRows; ++i) sums[i][chain] = fma(weights, broadcast(x[i][k]), sums[i][chain]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    const Vec sum = (sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3]);
    store(p.inner + rows[i] * p.rank + column, sum * p.scales[slot]);
  }
}

// Adds inner . b of kRows rows to kPassVecs registers of outputs from `col` on.
template <typename T, typename Out, int kRows>
void expand(const LoraParams& p, const int32_t* rows, int64_t slot, int64_t col) {
  Vec sums[kRows][kPassVecs] = {};
  const T* b = static_cast<const T*>(p.b) + slot * p.b_stride;
  b += col / kLoraCols * p.rank * kLoraCols + col % kLoraCols;
  const int64_t left = p.cols - col;
  for (int64_t j = 0; j < p.ranks[slot]; ++j, b += kLoraCols) {
    fetch_ahead(b, kPassVecs * kLanes * sizeof(T));
#pragma GCC unroll 4
    for (int v = 0; v < kPassVecs; ++v) {
      const Vec weights = load(b + v * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        sums[i][v] = fma(weights, broadcast(p.inner[rows[i] * p.rank + j]), sums[i][v]);
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
void in_passes(const Block& block, const Fn& fn) {
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

template <typename T>
void shrink_block(const LoraParams& p, const Block& block) {
  for (int64_t column = 0; column < p.ranks[block.slot]; column += kLanes) {
    in_passes(block, [&]<int kRows>(const int32_t* rows) { shrink<T, kRows>(p, rows, block.slot, column); });
  }
}

template <typename T, typename Out>
void expand_block(const LoraParams& p, const Block& block, int64_t begin, int64_t end) {
  for (int64_t col = begin; col < end; col += kPassVecs * kLanes) {
    in_passes(block,
              [&]<int kRows>(const int32_t* rows) { expand<T, Out, kRows>(p, rows, block.slot, col); });
  }
}

template <typename T, typename Out>
void add_deltas(const LoraParams& p) {
  const Blocks blocks(p);
  if (blocks.count() == 0) return;
  parallel_for(blocks.count(), blocks.num_rows() * p.rank * p.depth, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) shrink_block<T>(p, blocks[block]);
  });
  const int64_t parts = (p.cols + kTaskCols - 1) / kTaskCols;
  parallel_for(blocks.count() * parts, blocks.num_rows() * p.rank * p.cols, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % parts * kTaskCols, left = p.cols - first;
      expand_block<T, Out>(p, blocks[task / parts], first, first + (left < kTaskCols ? left : kTaskCols));
    }
  });
}

}  // namespace

void lora(const LoraParams& p) {
  if (p.dtype == DType::kFloat32) {
    add_deltas<float, float>(p);
  } else if (p.out_dtype == DType::kFloat32) {
    add_deltas<BFloat16, float>(p);
  } else {
    add_deltas<BFloat16, BFloat16>(p);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
