// Brings keys and values that the cache keeps in codes to shared memory, where they become bfloat16.
//
// Codes travel as the bfloat16 of CacheReader do, twice as many chunks in the same room, and each thread
// turns those into numbers that it has copied itself. There is one chunk of numbers: between its last use and
// the next chunk's numbers stands one barrier more.
#pragma once

#include "cuda/attention_cache.cuh"
#include "cuda/cache_codes.cuh"

namespace splitserve::cuda {

template <int kDim, int kChunk, int kStages>
struct CodedStages {
  static constexpr int kCodeStages = 2 * (kStages - 1);

  // Of the chunk in use, as CacheStages has them.
  uint4 keys[kChunk * kDim / 8];
  uint4 values[kChunk * kDim / 8];
  // By eights, position by position.
  uint2 key_codes[kCodeStages][kChunk * kDim / 8];
  uint2 value_codes[kCodeStages][kChunk * kDim / 8];
  // In bfloat16, of keys and values; 0 where nothing is read.
  uint16_t scales[kCodeStages][2][kChunk];
  int64_t offsets[2][kChunk];
};

template <typename View, int kDim, int kChunk, int kStages>
class CodedReader {
 public:
  using Stages = CodedStages<kDim, kChunk, kStages>;

  // As CacheReader does.
  __device__ CodedReader(const AttentionParams& params, Stages& stages, const AttentionPiece& piece)
      : p_(params), stages_(stages), chunks_(params, piece) {}

  __device__ int num_chunks() const { return chunks_.count(); }
  __device__ int position_of(int chunk) const { return chunks_.position_of(chunk); }
  __device__ const uint4* keys(int) const { return stages_.keys; }
  __device__ const uint4* values(int) const { return stages_.values; }

  __device__ void start() {
    int blocks[kCodeStages];
#pragma unroll
    for (int chunk = 0; chunk < kCodeStages; ++chunk) blocks[chunk] = chunks_.block_of(chunk);
#pragma unroll
    for (int chunk = 0; chunk < kCodeStages; ++chunk) {
      store_offset(chunk, blocks[chunk]);
      store_scales(chunk, scales_of(chunk, blocks[chunk]));
      if (chunk == kCodeStages - 1) break;
      __syncthreads();
      load(chunk);
    }
  }

  // Makes numbers of a chunk that has come, once the one before it has been used by all threads.
  __device__ void next(int chunk) {
    wait_for_copies<kCodeStages - 2>();
    __syncthreads();
    p_.format == CacheFormat::kInt8 ? make_numbers<true>(chunk) : make_numbers<false>(chunk);
    load(chunk + kCodeStages - 1);
    next_block_ = chunks_.block_of(chunk + kCodeStages);
    __syncthreads();
  }

  __device__ void finish(int chunk) {
    // Those looked up a chunk ago.
    if (chunk > 0) store_scales(chunk + kCodeStages - 1, next_scales_);
    store_offset(chunk + kCodeStages, next_block_);
    next_scales_ = scales_of(chunk + kCodeStages, next_block_);
  }

 private:
  static constexpr int kCodeStages = Stages::kCodeStages;
  // Each thread copies the same eighth of every kStep-th position.
  static constexpr unsigned kEighths = kDim / 8, kStep = kAttentionThreads / kEighths;

  // Of a block and this KV head, in bytes.
  __device__ int64_t head_at(int block) const {
    return block * p_.block_stride + chunks_.kv_head() * p_.head_stride;
  }

  __device__ void store_offset(int chunk, int block) {
    if (threadIdx.x >= kChunk) return;
    stages_.offsets[chunk % 2][threadIdx.x] =
        block < 0 ? kUnread : head_at(block) + codes_at(chunks_.slot_of(chunk), p_.head_dim);
  }

  // Of this thread's position: the key's in the lower half, the value's in the upper.
  __device__ uint32_t scales_of(int chunk, int block) const {
    if (p_.format != CacheFormat::kInt8 || block < 0) return 0;
    const int64_t at = head_at(block) + scale_at(chunks_.slot_of(chunk), p_.head_dim, p_.block_size);
    return scale_in(p_.k, at) | scale_in(p_.v, at) << 16;
  }

  __device__ static uint32_t scale_in(const void* cache, int64_t at) {
    return *reinterpret_cast<const uint16_t*>(static_cast<const char*>(cache) + at);
  }

  __device__ void store_scales(int chunk, uint32_t scales) {
    if (threadIdx.x >= kChunk) return;
    stages_.scales[chunk % kCodeStages][0][threadIdx.x] = static_cast<uint16_t>(scales);
    stages_.scales[chunk % kCodeStages][1][threadIdx.x] = static_cast<uint16_t>(scales >> 16);
  }

  __device__ void load(int chunk) {
    if (chunk < num_chunks()) {
      const unsigned eighth = threadIdx.x % kEighths;
      const bool is_in_head = static_cast<int>(eighth) * 8 < p_.head_dim;
      uint2* keys = stages_.key_codes[chunk % kCodeStages];
      uint2* values = stages_.value_codes[chunk % kCodeStages];
#pragma unroll 4
      for (unsigned i = 0; i < kChunk / kStep; ++i) {
        const unsigned position = i * kStep + threadIdx.x / kEighths, to = position * kEighths + eighth;
        const int64_t from = stages_.offsets[chunk % 2][position] + eighth * 8;
        const int bytes = from >= 0 && is_in_head ? 8 : 0;
        copy_async_8(keys + to, static_cast<const char*>(p_.k) + from, bytes);
        copy_async_8(values + to, static_cast<const char*>(p_.v) + from, bytes);
      }
    }
    commit_copies();
  }

  template <bool kIsInt8>
  __device__ void make_numbers(int chunk) {
    const int stage = chunk % kCodeStages;
    const unsigned eighth = threadIdx.x % kEighths;
#pragma unroll 2
    for (unsigned i = 0; i < kChunk / kStep; ++i) {
      const unsigned position = i * kStep + threadIdx.x / kEighths, from = position * kEighths + eighth;
      const unsigned to = swizzled<kDim>(position, eighth);
      const uint32_t key_scale = stages_.scales[stage][0][position],
                     value_scale = stages_.scales[stage][1][position];
      stages_.keys[to] = numbers_of<kIsInt8>(stages_.key_codes[stage][from], key_scale);
      stages_.values[to] = numbers_of<kIsInt8>(stages_.value_codes[stage][from], value_scale);
    }
  }

  template <bool kIsInt8>
  __device__ static uint4 numbers_of(uint2 codes, uint32_t scale) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = code_pair(codes, i);
      pairs[i] = kIsInt8 ? int8_numbers(pair, scale * 0x00010001u) : fp8_numbers(pair);
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }

  const AttentionParams& p_;
  Stages& stages_;
  PieceChunks<View, kChunk> chunks_;
  int next_block_ = -1;
  uint32_t next_scales_ = 0;
};

struct CodedCache {
  template <int kDim, int kChunk, int kStages>
  using Stages = CodedStages<kDim, kChunk, kStages>;
  template <typename View, int kDim, int kChunk, int kStages>
  using Reader = CodedReader<View, kDim, kChunk, kStages>;
};

}  // namespace splitserve::cuda
