// Adapters' deltas: rows of one adapter are multiplied with its matrices side by side, so that these are read
// once for several rows.
//
// Every sum is that of one row and one column, and the order in which it is summed depends on depth or rank
// alone: a row has the same bits beside any others.
#include "cpu/kernels.h"
#include "cpu/lora_tiles.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Outputs of a task.
inline constexpr int64_t kTaskCols = 512;
static_assert(kTaskCols % kLoraCols == 0);
// From so many blocks per thread on each is computed as a whole: threads meet once, and an adapter's two
// matrices, which lie side by side, are read in one go.
inline constexpr int64_t kWholeBlocks = 4;

template <typename T, typename Out>
void add_whole_blocks(const LoraParams& p, const LoraBlocks& blocks) {
  const int64_t work = blocks.num_rows() * p.rank * (p.depth + p.cols);
  parallel_for(blocks.count(), work, [&](int64_t begin, int64_t end) {
    LoraProducts<T> products;
    for (int64_t block = begin; block < end; ++block) {
      products.shrink(p, blocks[block]);
      products.template expand<Out>(p, blocks[block], 0, p.cols);
    }
  });
}

template <typename T, typename Out>
void add_parted_blocks(const LoraParams& p, const LoraBlocks& blocks) {
  parallel_for(blocks.count(), blocks.num_rows() * p.rank * p.depth, [&](int64_t begin, int64_t end) {
    LoraProducts<T> products;
    for (int64_t block = begin; block < end; ++block) products.shrink(p, blocks[block]);
  });
  const int64_t parts = (p.cols + kTaskCols - 1) / kTaskCols;
  parallel_for(blocks.count() * parts, blocks.num_rows() * p.rank * p.cols, [&](int64_t begin, int64_t end) {
    LoraProducts<T> products;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % parts * kTaskCols, left = p.cols - first;
      products.template expand<Out>(p, blocks[task / parts], first,
                                    first + (left < kTaskCols ? left : kTaskCols));
    }
  });
}

template <typename T, typename Out>
void add_deltas(const LoraParams& p) {
  const LoraBlocks blocks(p);
  if (blocks.count() == 0) return;
  if (num_threads() == 1 || blocks.count() >= kWholeBlocks * num_threads()) {
    add_whole_blocks<T, Out>(p, blocks);
  } else {
    add_parted_blocks<T, Out>(p, blocks);
  }
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
