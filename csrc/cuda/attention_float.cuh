// The softmax of one query row in single precision, by one warp.
#pragma once

#include "cuda/attention_sink.cuh"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {

inline constexpr int kFloatChunk = 32;

// Lanes share out the positions of a chunk for the scores and the dimensions of the head for the values, each
// lane kLaneDims of them at most. Chunks and segments begin at absolute positions and only positions that the
// row sees are read.
template <typename View, int kLaneDims>
class FloatRow {
 public:
  // `q` has key_dim elements, which a key has too.
  __device__ FloatRow(const AttentionParams& params, const RequestRows& rows, int request, int head,
                      const float* q, int key_dim)
      : p_(params),
        rows_(rows),
        request_(request),
        head_offset_(head / params.group * params.head_stride),
        q_(q),
        key_dim_(key_dim) {}

  // Positions [from, to).
  __device__ void run(int from, int to) {
    for (int start = from / kFloatChunk * kFloatChunk; start < to; start += kFloatChunk) {
      if (start % kSegment == 0) end_segment();
      attend(start, max(from - start, 0), min(to - start, kFloatChunk));
    }
    end_segment();
  }

  __device__ void write(float* out, int head) const {
    const float factor = final_factor(total_, sink_of<float>(p_, head));
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) {
      if (i * 32 + lane() < p_.head_dim) out[i * 32 + lane()] = multiply(total_values_[i], factor);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  // -1 where there is no block.
  __device__ int64_t offset_of(int position) const {
    const int block = View::block_of(p_, rows_, request_, position);
    if (block < 0) return -1;
    return block * p_.block_stride + head_offset_ + position % p_.block_size * p_.slot_stride;
  }

  __device__ float score(int64_t offset) const {
    if (offset < 0) return 0.0f;
    const auto* key = reinterpret_cast<const float4*>(static_cast<const float*>(p_.k) + offset);
    const auto* query = reinterpret_cast<const float4*>(q_);
    float sums[4] = {};
    for (int d = 0; d < key_dim_ / 4; ++d) {
      const float4 a = query[d], b = key[d];
      sums[0] = multiply_add(a.x, b.x, sums[0]);
      sums[1] = multiply_add(a.y, b.y, sums[1]);
      sums[2] = multiply_add(a.z, b.z, sums[2]);
      sums[3] = multiply_add(a.w, b.w, sums[3]);
    }
    const float sum = multiply(p_.scale, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (p_.softcap == 0.0f) return multiply(sum, kLog2e);
    const float doubled = multiply(sum, 2.0f * kLog2e / p_.softcap);
    return multiply(multiply(p_.softcap, kLog2e), 1.0f - 2.0f / (exp2_fast(doubled) + 1.0f));
  }

  __device__ void attend(int start, int begin, int end) {
    const bool is_seen = lane() >= begin && lane() < end;
    const int64_t offset = is_seen ? offset_of(start + lane()) : -1;
    const float own = is_seen ? score(offset) : -INFINITY;
    float highest = fmaxf(part_.max, own);
    for (int mask = 16; mask > 0; mask /= 2)
      highest = fmaxf(highest, __shfl_xor_sync(kWholeWarp, highest, mask));
    const float base = softmax_base(highest), keep = exp2_fast(part_.max - base),
                weight = exp2_fast(own - base);
    float sum = weight;
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, mask);
    part_ = {highest, multiply_add(part_.sum, keep, sum)};
    add_values(offset, weight, begin, end, keep);
  }

  __device__ void add_values(int64_t own_offset, float own_weight, int begin, int end, float keep) {
    const auto* values = static_cast<const float*>(p_.v);
    float sums[kLaneDims] = {};
    for (int j = begin; j < end; ++j) {
      const int64_t offset = __shfl_sync(kWholeWarp, own_offset, j);
      const float weight = __shfl_sync(kWholeWarp, own_weight, j);
      if (offset < 0) continue;
#pragma unroll
      for (int i = 0; i < kLaneDims; ++i) {
        const int d = i * 32 + lane();
        if (d < p_.head_dim) sums[i] = multiply_add(weight, values[offset + d], sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) values_[i] = multiply_add(values_[i], keep, sums[i]);
  }

  __device__ void end_segment() {
    const MergeFactors factors = merge_into(&total_, part_);
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) {
      total_values_[i] = merged_value(total_values_[i], values_[i], factors);
      values_[i] = 0.0f;
    }
    part_ = {};
  }

  const AttentionParams& p_;
  const RequestRows& rows_;
  int request_;
  int64_t head_offset_;
  const float* q_;
  int key_dim_;
  SoftmaxState part_, total_;
  float values_[kLaneDims] = {}, total_values_[kLaneDims] = {};
};

// The request that owns a row of q.
__device__ inline int request_of(const AttentionParams& p, int token) {
  int low = 0, high = p.requests;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (p.cu_seqlens_q[middle] <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace splitserve::cuda
