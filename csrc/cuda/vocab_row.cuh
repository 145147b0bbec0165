// One row of logits in the hands of a cluster of thread blocks, each with a slice of the vocabulary.
//
// Where a slice fits, it is read from global memory once and stays in shared memory for everything that
// follows. What the blocks agree on are integers, so the size of the cluster changes no result.
#pragma once

#include "common/logit_rules.h"
#include "common/sampling_math.h"
#include "common/select_key.h"
#include "cuda/intrinsics.cuh"

namespace splitserve::cuda {

inline constexpr int kVocabThreads = 512;
inline constexpr int kVocabWarps = kVocabThreads / 32;
inline constexpr int kVocabBins = 2048;

// Of a histogram: the bin in which a target is reached, its tokens, and the weight before it and in it.
struct FoundBin {
  int32_t bin;
  uint32_t count;
  uint64_t before, weight;
};

// Dynamic shared memory: the same places in every block of a cluster.
struct VocabMemory {
  uint64_t warp_values[kVocabWarps];
  uint64_t block_value;
  FoundBin found[2];  // by turns: others still read the one before
  uint64_t cut;
  int32_t num_listed;
  // Other blocks of the cluster read these word by word.
  alignas(16) uint64_t weights[kVocabBins];
  alignas(16) uint32_t counts[kVocabBins];
};

class VocabRow {
 public:
  // `is_cached` says that shared memory behind VocabMemory holds a slice. What a mask does not allow counts
  // as -inf; nullptr allows all.
  __device__ VocabRow(const float* logits, int vocab, bool is_cached, const uint32_t* mask = nullptr)
      : logits_(logits),
        mask_(mask),
        vocab_(vocab),
        cache_(is_cached ? reinterpret_cast<float*>(&memory() + 1) : nullptr) {
    const int slice = slice_size(vocab, static_cast<int>(cluster_size()));
    begin_ = min(static_cast<int>(cluster_rank()) * slice, vocab);
    size_ = min(slice, vocab - begin_);
  }

  __host__ __device__ static constexpr int slice_size(int vocab, int blocks) {
    return (vocab + blocks - 1) / blocks;
  }

  __device__ static VocabMemory& memory() { return *reinterpret_cast<VocabMemory*>(dynamic_shared()); }

  // Looks at the whole row once. Call it before anything else; all threads of the cluster.
  __device__ void load() {
    uint64_t best = 0;
    bool is_broken = false;
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x); i < size_; i += kVocabThreads) {
      const float logit = read(begin_ + i);
      if (cache_ != nullptr) cache_[i] = logit;
      is_broken |= logit != logit;
      const uint64_t key = preference_key(logit, begin_ + i);
      best = key > best ? key : best;
    }
    // Above every number's key.
    best_ = reduce(is_broken ? ~uint64_t{0} : best, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }

  __device__ bool has_nan() const { return best_ == ~uint64_t{0}; }
  __device__ float highest() const { return from_order_key(static_cast<uint32_t>(best_ >> 32)); }
  // The lowest id among the highest logits.
  __device__ int highest_id() const {
    if (has_nan()) return kNotANumber;
    return highest() == -INFINITY ? kNothingLeft : static_cast<int>(~static_cast<uint32_t>(best_));
  }
  __device__ bool has_finite_highest() const { return !has_nan() && highest() - highest() == 0.0f; }

  // Of any token of the row, whatever the mask says.
  __device__ float logit_of(int token_id) const { return logits_[token_id]; }

  // fn(logit, token id) for this thread's tokens.
  template <typename Fn>
  __device__ void for_each(const Fn& fn) const {
    for (int i = static_cast<int>(threadIdx.x); i < size_; i += kVocabThreads) {
      fn(cache_ != nullptr ? cache_[i] : read(begin_ + i), begin_ + i);
    }
  }

  // Joins a value of every thread of the cluster; all get the result. Op must not depend on an order.
  template <typename Op>
  __device__ uint64_t reduce(uint64_t value, const Op& op) const {
    VocabMemory& shared = memory();
    for (int mask = 16; mask > 0; mask /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, mask));
    if (threadIdx.x % 32 == 0) shared.warp_values[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared.warp_values[0];
    for (int i = 1; i < kVocabWarps; ++i) value = op(value, shared.warp_values[i]);
    if (threadIdx.x == 0) shared.block_value = value;
    cluster_sync();
    value = *in_block(&shared.block_value, 0);
    for (uint32_t rank = 1; rank < cluster_size(); ++rank)
      value = op(value, *in_block(&shared.block_value, rank));
    cluster_sync();
    return value;
  }

  __device__ uint64_t sum(uint64_t value) const {
    return reduce(value, [](uint64_t a, uint64_t b) { return a + b; });
  }

 private:
  __device__ float read(int token_id) const {
    const float logit = logits_[token_id];
    return mask_ == nullptr || is_allowed(mask_, token_id) ? logit : forbidden(logit);
  }

  const float* logits_;
  const uint32_t* mask_;
  int vocab_, begin_, size_;
  float* cache_;
  uint64_t best_ = 0;
};

}  // namespace splitserve::cuda
