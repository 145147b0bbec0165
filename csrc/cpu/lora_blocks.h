// The rows of a call by adapter, in blocks that are multiplied with its matrices together.
#pragma once

#include "common/lora.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows of a block.
inline constexpr int64_t kLoraBlockRows = 64;
// Sums over depth have so many chains, since one addition waits for the last.
inline constexpr int kLoraChains = 4;
// Up to kLoraBlockRows rows of one adapter.
struct LoraBlock {
  const int32_t* rows;
  int64_t count;
  int64_t slot;
};

// The rows by adapter, in p.order, and in which block each task works.
class LoraBlocks {
 public:
  explicit LoraBlocks(const LoraParams& p) : order_(p.order) {
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
      blocks += (count + kLoraBlockRows - 1) / kLoraBlockRows;
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

  LoraBlock operator[](int64_t block) const {
    int64_t slot = 0;
    while (firsts_[slot + 1] <= block) ++slot;
    const int64_t first = starts_[slot] + (block - firsts_[slot]) * kLoraBlockRows;
    const int64_t left = starts_[slot + 1] - first;
    return {order_ + first, left < kLoraBlockRows ? left : kLoraBlockRows, slot};
  }

 private:
  const int32_t* order_;
  int32_t starts_[kMaxAdapters + 1];
  int64_t firsts_[kMaxAdapters + 1];
  int64_t count_, num_rows_;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
