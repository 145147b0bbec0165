// The softmax of 16 query rows over cached latents, on the matrix units.
//
// A row of the cache is key and value at once, and all heads read it; so it comes to shared memory once, and
// a tile has heads of a few tokens. Four warps share the rows: each scores 8 of a chunk's 32 positions, they
// exchange the scores, and each adds up a quarter of the latent. As in attention_tile.cuh chunks begin at
// absolute positions and one that a row does not see leaves its bits alone: a row gets the same bits from a
// prefill, a chunk of it and a decode step.
#pragma once

#include "cuda/attention_tile.cuh"
#include "cuda/latent_cache.cuh"

namespace splitserve::cuda {

inline constexpr int kLatentWarps = kAttentionThreads / 32;
static_assert(kScoreTiles == kLatentWarps, "a warp scores one tile");
// Of 16 elements of the latent, which a warp adds up: most of them.
inline constexpr int kOwnPairs = static_cast<int>(kMaxLatent) / 16 / kLatentWarps;

template <typename Half>
class LatentTile {
 public:
  __device__ LatentTile(const LatentAttentionParams& params, const AttentionPiece& piece,
                        LatentMemory& memory)
      : params_(params), p_(params.base), piece_(piece), rows_(piece.rows), memory_(memory) {}

  __device__ void run() {
    load_queries();
    LatentReader reader(params_, memory_, piece_);
    reader.start();
    for (int i = 0; i < reader.num_chunks(); ++i) {
      reader.next(i);
      attend(reader.chunk(i), i * kLatentChunk);
      reader.finish(i);
    }
    write_output();
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  // A lane holds parts of two rows: this one of the request's and the one 8 below it. It may lie past the
  // end.
  __device__ int row(int half) const { return piece_.item.first_row + lane() / 4 + half * 8; }
  // The last row for those past the end, whose results nobody reads.
  __device__ int real_row(int row) const { return min(row, rows_.rows - 1); }

  // They are read from the first chunk on, which comes after a barrier.
  __device__ void load_queries() {
    const int width = params_.width();
    auto* to = reinterpret_cast<uint16_t*>(memory_.queries);
    for (int i = static_cast<int>(threadIdx.x); i < kLatentRows * width; i += kAttentionThreads) {
      const int r = real_row(piece_.item.first_row + i / width), d = i % width;
      const int64_t token = rows_.first_token + r / p_.group, head = r % p_.group;
      const auto* latent =
          static_cast<const uint16_t*>(p_.q) + token * p_.q_token_stride + head * p_.q_head_stride;
      const auto* rotary = static_cast<const uint16_t*>(params_.q_rotary) +
                           token * params_.rotary_token_stride + head * params_.rotary_head_stride;
      to[i / width * row_stride(width) * 8 + d] = d < p_.head_dim ? latent[d] : rotary[d - p_.head_dim];
    }
  }

  __device__ void attend(const uint4* chunk, int start) {
    float scores[kScoreTiles][4];
    score(chunk, scores);
    weigh(scores, start);
    add_values(chunk, scores);
  }

  // This warp's 8 positions, then those of all.
  __device__ void score(const uint4* chunk, float (&scores)[kScoreTiles][4]) {
    const int width = params_.width(), stride = row_stride(width);
    float own[4] = {};
    const uint4* keys = chunk + (warp() * 8 + lane() % 8) * stride + lane() / 8;
    const uint4* queries = memory_.queries + lane() % 16 * stride + lane() / 16;
#pragma unroll 2
    for (int eighth = 0; eighth < width / 8; eighth += 4) {
      uint32_t a[4], b[4];
      load_matrices(b, keys + eighth);
      load_matrices(a, queries + eighth);
      mma<Half>(own, a, b[0], b[1]);
      load_matrices(a, queries + eighth + 2);
      mma<Half>(own, a, b[2], b[3]);
    }
    // The scores of the chunk before were read ahead of the barriers at this one's start.
    memory_.scores[warp()][lane()] = make_float4(own[0], own[1], own[2], own[3]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kScoreTiles; ++i) {
      const float4 all = memory_.scores[i][lane()];
      scores[i][0] = all.x;
      scores[i][1] = all.y;
      scores[i][2] = all.z;
      scores[i][3] = all.w;
    }
  }

  // Turns raw scores into weights exp2(score - maximum), and moves the rows' sums to the new maximum.
  __device__ void weigh(float (&scores)[kScoreTiles][4], int start) {
    const float factor = multiply(p_.scale, kLog2e);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = rows_.position(real_row(row(half)));
      float highest = part_[half].max;
#pragma unroll
      for (int i = 0; i < kScoreTiles; ++i) {
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j) {
          const int position = start + i * 8 + lane() % 4 * 2 + j % 2;
          scores[i][j] = position > last ? -INFINITY : multiply(scores[i][j], factor);
          highest = fmaxf(highest, scores[i][j]);
        }
      }
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
      const float base = softmax_base(highest), keep = exp2_fast(part_[half].max - base);
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kScoreTiles; ++i) {
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j) {
          scores[i][j] = exp2_fast(scores[i][j] - base);
          sum += scores[i][j];
        }
      }
      // Of this lane's columns; the lanes of a row are added up at the end.
      part_[half] = {highest, multiply_add(part_[half].sum, keep, sum)};
#pragma unroll
      for (int i = 0; i < kOwnPairs * 2; ++i) {
        values_[i][half * 2] *= keep;
        values_[i][half * 2 + 1] *= keep;
      }
    }
  }

  // The first of 16 elements of the latent.
  __device__ static int first_dim(int pair) { return (pair * kLatentWarps + warp()) * 16; }

  __device__ void add_values(const uint4* chunk, const float (&weights)[kScoreTiles][4]) {
    const int stride = row_stride(params_.width());
#pragma unroll
    for (int step = 0; step < kLatentChunk / 16; ++step) {
      const float (&low)[4] = weights[step * 2];
      const float (&high)[4] = weights[step * 2 + 1];
      const uint32_t a[4] = {pack_pair<Half>(low[0], low[1]), pack_pair<Half>(low[2], low[3]),
                             pack_pair<Half>(high[0], high[1]), pack_pair<Half>(high[2], high[3])};
      const uint4* values = chunk + (step * 16 + lane() % 16) * stride + lane() / 16;
#pragma unroll
      for (int pair = 0; pair < kOwnPairs; ++pair) {
        if (first_dim(pair) >= p_.head_dim) continue;
        uint32_t b[4];
        load_matrices_transposed(b, values + first_dim(pair) / 8);
        mma<Half>(values_[pair * 2], a, b[0], b[1]);
        mma<Half>(values_[pair * 2 + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ void write_output() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = part_[half].sum;
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const float inverse = 1.0f / sum;
      const int r = row(half);
      if (r >= rows_.rows) continue;
      auto* out = static_cast<uint16_t*>(p_.out) + (rows_.first_token + r / p_.group) * p_.out_token_stride +
                  r % p_.group * p_.out_head_stride;
#pragma unroll
      for (int i = 0; i < kOwnPairs * 2; ++i) {
        const int d = first_dim(i / 2) + i % 2 * 8 + lane() % 4 * 2;
        if (d >= p_.head_dim) continue;
        const uint32_t both = pack_pair<Half>(multiply(values_[i][half * 2], inverse),
                                              multiply(values_[i][half * 2 + 1], inverse));
        out[d] = static_cast<uint16_t>(both);
        out[d + 1] = static_cast<uint16_t>(both >> 16);
      }
    }
  }

  const LatentAttentionParams& params_;
  const AttentionParams& p_;
  const AttentionPiece& piece_;
  const RequestRows& rows_;
  LatentMemory& memory_;
  SoftmaxState part_[2];
  float values_[kOwnPairs * 2][4] = {};
};

}  // namespace splitserve::cuda
