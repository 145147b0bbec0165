// Finds where the preference-ordered list of a row's tokens has to be cut, without sorting it.
//
// A histogram of the tokens' weights says in which bin the cut lies; the next one divides that bin. The first
// goes by probability, which spreads tokens evenly, those behind it by the bits of the logit and of the token
// id, after which a bin is a single token. Weights are integers, so a histogram does not depend on the order
// of additions.
#pragma once

#include "cuda/vocab_row.cuh"

namespace splitserve::cuda {

inline constexpr int kBinBits = 11;
static_assert(1 << kBinBits == kVocabBins);
// Token ids are divided twice.
inline constexpr int kMaxVocab = 1 << (2 * kBinBits);

// A token as the histograms see it: the lower, the more preferred, part by part.
struct Preference {
  int32_t bin;        // of its probability
  uint32_t inverted;  // its logit's key, upside down
  int32_t token_id;

  __device__ bool operator<=(const Preference& other) const {
    if (bin != other.bin) return bin < other.bin;
    if (inverted != other.inverted) return inverted < other.inverted;
    return token_id <= other.token_id;
  }
};

// Which tokens take part: x = (logit - max) / temperature at least min_x, and up to the cut.
struct VocabFilter {
  float max, inverse_temperature, min_x;
  Preference cut;

  __device__ float x(float logit) const { return multiply(logit - max, inverse_temperature); }

  __device__ int32_t bin(float logit) const {
    constexpr float kBinsPerUnit = 64.0f;  // 32 units below the maximum, the last bin holds all the rest
    return static_cast<int32_t>(fminf(x(logit) * -kBinsPerUnit, kVocabBins - 1));
  }

  __device__ Preference preference(float logit, int token_id) const {
    return {bin(logit), ~order_key(logit), token_id};
  }

  __device__ bool keeps(float logit, int token_id) const {
    return x(logit) >= min_x && preference(logit, token_id) <= cut;
  }
};

__device__ inline VocabFilter keep_all(float max, float temperature) {
  return {max, 1.0f / temperature, -INFINITY, {kVocabBins, 0, 0}};
}

class CutFinder {
 public:
  __device__ CutFinder(const VocabRow& row, const VocabFilter& filter, bool by_mass)
      : row_(row), filter_(filter), shared_(VocabRow::memory()), by_mass_(by_mass) {}

  // The last token of the shortest list whose weight reaches target_of(weight of all), which is above 0;
  // everything, if all of it does not.
  template <typename TargetOf>
  __device__ Preference find(const TargetOf& target_of) {
    Preference cut{0, 0, 0};
    uint64_t target = 0;
    for (int level = 0; level < kLevels; ++level) {
      fill(level, cut);
      const FoundBin found = find_bin(level, target, target_of);
      if (found.bin < 0) return filter_.cut;
      const bool is_all = found.before + found.weight == target && !by_mass_;
      const bool is_done = found.count == 1 || is_all;
      target -= found.before;
      if (!is_done && found.count <= kMaxListed) return find_listed(level, cut, found.bin, target);
      cut = with_digit(cut, level, static_cast<uint32_t>(found.bin), is_done);
      if (is_done) break;
    }
    return cut;
  }

 private:
  // Digits of a preference: its bin, three of the logit, two of the token id.
  static constexpr int kLevels = 6;
  static constexpr int kMaxBinsPerThread = kVocabBins / kVocabThreads;
  // Tokens of a bin that are compared one by one; a thread has one of them.
  static constexpr uint32_t kMaxListed = 256;
  static_assert(kMaxListed <= kVocabThreads && 3 * kMaxListed <= kVocabBins);

  __device__ static int shift(int level) {
    return level == 1 ? 21 : level == 2 ? 10 : level == 4 ? kBinBits : 0;
  }

  __device__ static uint32_t digit(const Preference& token, int level) {
    if (level == 0) return static_cast<uint32_t>(token.bin);
    const uint32_t bits = level <= 3 ? token.inverted : static_cast<uint32_t>(token.token_id);
    return bits >> shift(level) & (level == 3 ? 1023u : kVocabBins - 1u);
  }

  // Whether all digits before `level` are those of the cut.
  __device__ static bool is_in_band(const Preference& token, const Preference& cut, int level) {
    for (int i = 0; i < level; ++i) {
      if (digit(token, i) != digit(cut, i)) return false;
    }
    return true;
  }

  // `is_last`: the bin is kept whole, whatever the digits behind it.
  __device__ static Preference with_digit(Preference cut, int level, uint32_t digit, bool is_last) {
    if (level == 0) {
      cut.bin = static_cast<int32_t>(digit);
    } else if (level <= 3) {
      cut.inverted |= digit << shift(level);
    } else {
      cut.token_id |= static_cast<int32_t>(digit << shift(level));
    }
    if (!is_last) return cut;
    const uint32_t behind = (1u << shift(level)) - 1;
    if (level == 0) cut.inverted = ~0u;
    if (level == 1 || level == 2) cut.inverted |= behind;
    cut.token_id = level <= 3 ? INT32_MAX : cut.token_id | static_cast<int32_t>(behind);
    return cut;
  }

  // fn(token, logit) for this thread's tokens that have all digits of the cut before `level`.
  template <typename Fn>
  __device__ void for_each_in_band(int level, const Preference& cut, const Fn& fn) const {
    row_.for_each([&](float logit, int token_id) {
      // Where nearly all tokens end in all passes but the first.
      if (level > 0 && filter_.bin(logit) != cut.bin) return;
      if (!filter_.keeps(logit, token_id)) return;
      const Preference token = filter_.preference(logit, token_id);
      if (is_in_band(token, cut, level)) fn(token, logit);
    });
  }

  __device__ void fill(int level, const Preference& cut) {
    for (int bin = static_cast<int>(threadIdx.x); bin < kVocabBins; bin += kVocabThreads) {
      shared_.weights[bin] = 0;
      shared_.counts[bin] = 0;
    }
    __syncthreads();
    for_each_in_band(level, cut, [&](const Preference& token, float logit) {
      const uint32_t bin = digit(token, level);
      atomicAdd(&shared_.counts[bin], 1u);
      if (!by_mass_) return;
      // Most tokens weigh nothing, and all of them, those that a mask forbids too, would queue for one bin.
      const uint64_t mass = mass_of(filter_.x(logit));
      if (mass != 0) add_mass(bin, mass);
    });
    cluster_sync();
  }

  // Shared memory adds 32 bits by itself, and 64 only by comparing and swapping until nobody was in between.
  // So the lower half is added, and its carry with the upper half, which few tokens have.
  __device__ void add_mass(uint32_t bin, uint64_t mass) {
    auto* halves = reinterpret_cast<uint32_t*>(&shared_.weights[bin]);
    const auto low = static_cast<uint32_t>(mass);
    const uint32_t before = atomicAdd(&halves[0], low), carry = before + low < low ? 1 : 0;
    const uint32_t high = static_cast<uint32_t>(mass >> 32) + carry;
    if (high != 0) atomicAdd(&halves[1], high);
  }

  // Leaves the first bin at whose end the weights reach the target, which the first level asks for; a
  // negative one if there is none. Every block adds up its share of the bins, as they are in all blocks.
  template <typename TargetOf>
  __device__ FoundBin find_bin(int level, uint64_t& target, const TargetOf& target_of) {
    const int num_bins = kVocabBins / static_cast<int>(cluster_size());
    const int per_thread = max(num_bins / kVocabThreads, 1);
    const int begin = static_cast<int>(threadIdx.x) * per_thread;
    const int first = static_cast<int>(cluster_rank()) * num_bins + begin;
    uint64_t weights[kMaxBinsPerThread] = {}, own = 0;
#pragma unroll
    for (int i = 0; i < kMaxBinsPerThread; ++i) {
      if (i < per_thread && begin < num_bins) weights[i] = weight_of(first + i);
      own += weights[i];
    }
    uint64_t block = 0, before = weight_before(own, &block);
    if (threadIdx.x == 0) shared_.block_value = block;
    cluster_sync();
    if (level == 0) target = target_of(weight_of_blocks(cluster_size()));
    const uint32_t owner = owner_of(target);
    FoundBin& found = shared_.found[level % 2];
    if (owner == cluster_rank()) {
      before += weight_of_blocks(owner);
#pragma unroll
      for (int i = 0; i < kMaxBinsPerThread; ++i) {
        if (before < target && before + weights[i] >= target)
          found = {first + i, count_of(first + i), before, weights[i]};
        before += weights[i];
      }
    }
    cluster_sync();
    return owner < cluster_size() ? *in_block(&found, owner) : FoundBin{-1, 0, 0, 0};
  }

  __device__ uint32_t count_of(int bin) const {
    uint32_t sum = 0;
#pragma unroll 4
    for (uint32_t rank = 0; rank < cluster_size(); ++rank) sum += *in_block(&shared_.counts[bin], rank);
    return sum;
  }

  __device__ uint64_t weight_of(int bin) const {
    if (!by_mass_) return count_of(bin);
    uint64_t sum = 0;
#pragma unroll 4
    for (uint32_t rank = 0; rank < cluster_size(); ++rank) sum += *in_block(&shared_.weights[bin], rank);
    return sum;
  }

  // Of the bins that the blocks before `end` have added up.
  __device__ uint64_t weight_of_blocks(uint32_t end) const {
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < end; ++rank) sum += *in_block(&shared_.block_value, rank);
    return sum;
  }

  // The block among whose bins the target is reached; cluster_size() if it is not.
  __device__ uint32_t owner_of(uint64_t target) const {
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
      sum += *in_block(&shared_.block_value, rank);
      if (sum >= target) return rank;
    }
    return cluster_size();
  }

  // The same for the few tokens of one bin: each is compared with all others, in every block.
  __device__ Preference find_listed(int level, const Preference& cut, int32_t bin, uint64_t target) {
    if (threadIdx.x == 0) shared_.num_listed = 0;
    __syncthreads();
    uint64_t *listed = shared_.weights, *keys = listed + kMaxListed, *weights = keys + kMaxListed;
    for_each_in_band(level, cut, [&](const Preference& token, float) {
      if (digit(token, level) != static_cast<uint32_t>(bin)) return;
      listed[atomicAdd(&shared_.num_listed, 1)] =
          uint64_t{token.inverted} << 32 | static_cast<uint32_t>(token.token_id);
    });
    cluster_sync();
    int count = 0;
    for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
      const int size = *in_block(&shared_.num_listed, rank);
      for (int i = static_cast<int>(threadIdx.x); i < size; i += kVocabThreads) {
        const uint64_t key = *in_block(&listed[i], rank);
        keys[count + i] = key;
        weights[count + i] =
            by_mass_ ? mass_of(filter_.x(from_order_key(~static_cast<uint32_t>(key >> 32)))) : 1;
      }
      count += size;
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < count) {
      const uint64_t key = keys[threadIdx.x];
      uint64_t before = 0;
      for (int i = 0; i < count; ++i) before += keys[i] < key ? weights[i] : 0;
      if (before < target && before + weights[threadIdx.x] >= target) shared_.cut = key;
    }
    // Also: nobody may overwrite what others still read.
    cluster_sync();
    const uint64_t key = shared_.cut;
    return {level == 0 ? bin : cut.bin, static_cast<uint32_t>(key >> 32), static_cast<int32_t>(key)};
  }

  // The sum over the threads before this one, and in `all` over every one.
  __device__ uint64_t weight_before(uint64_t own, uint64_t* all) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    uint64_t sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) shared_.warp_values[warp] = sum;
    __syncthreads();
    for (int i = 0; i < kVocabWarps; ++i) {
      const uint64_t value = shared_.warp_values[i];
      *all += value;
      if (i < warp) sum += value;
    }
    return sum - own;
  }

  const VocabRow& row_;
  const VocabFilter& filter_;
  VocabMemory& shared_;
  bool by_mass_;
};

}  // namespace splitserve::cuda
