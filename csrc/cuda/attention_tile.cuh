// The softmax of one tile of query rows over its keys and values, on the matrix units.
//
// kGroups warps have 16 rows each, and kSplit warps share a group's rows: they divide the scores of a chunk
// between them, exchange these, and then own a slice of the head each. What happens to one row, and in which
// order, is the same for every such shape: chunks and segments begin at absolute positions, a chunk adds to
// the sums in steps of 16 positions, and a chunk that a row does not see leaves its bits alone. So a row gets
// the same bits from a prefill, a chunk of it and a decode step. The online softmax is that of Milakov and
// Gimelshein (arXiv:1805.02867), the order of products in registers that of FlashAttention-2 (Dao,
// arXiv:2307.08691).
#pragma once

#include "cuda/attention_cache.cuh"
#include "cuda/attention_sink.cuh"

namespace splitserve::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

template <typename Half_, typename Cache, int kDim_, int kGroups_, int kSplit_, int kStages_>
struct TileShape {
  using Half = Half_;
  static constexpr int kDim = kDim_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kSplit = kSplit_;
  static constexpr int kStages = kStages_;
  static constexpr int kChunk = kDim <= 128 ? 64 : 32;
  using Stages = typename Cache::template Stages<kDim, kChunk, kStages>;
  template <typename View>
  using Reader = typename Cache::template Reader<View, kDim, kChunk, kStages>;
  static constexpr int kScoreTiles = kChunk / 8;
  static constexpr int kOwnScoreTiles = kScoreTiles / kSplit;
  static constexpr int kDepthSteps = kDim / 16;
  static constexpr int kDimTiles = kDim / 8 / kSplit;
  static_assert(kGroups * kSplit * 32 == kAttentionThreads);
  static_assert(kSegment % kChunk == 0 && kDepthSteps % 2 == 0 && kDimTiles % 2 == 0);
};

// Where a thread sits in its tile.
template <typename Shape>
struct TileSeat {
  int thread;

  __device__ int lane() const { return thread % 32; }
  __device__ int group() const { return thread / 32 / Shape::kSplit; }
  __device__ int slice() const { return thread / 32 % Shape::kSplit; }
  // A lane holds parts of two rows of its group: this one of the tile and the one 8 below it.
  __device__ int row(int half) const { return group() * 16 + lane() / 4 + half * 8; }
  // The first of two dimensions of a row's values.
  __device__ int dim(int tile) const { return (slice() * Shape::kDimTiles + tile) * 8 + lane() % 4 * 2; }
};

template <typename Shape>
struct TileMemory {
  typename Shape::Stages stages;
  // Scores on their way between the warps of a group, one register fragment per lane.
  float4 scores[Shape::kSplit > 1 ? Shape::kGroups * Shape::kScoreTiles : 1][32];
  // Sums of the segments behind the current one; each thread keeps its own, for there are no registers left.
  float4 totals[Shape::kDimTiles][kAttentionThreads];
  SoftmaxState total_states[2][kAttentionThreads];
};

// View: which positions a row sees, and where they lie.
template <typename Shape, typename View>
class AttentionTile {
 public:
  using Half = typename Shape::Half;

  __device__ AttentionTile(const AttentionParams& params, const AttentionPiece& piece,
                           TileMemory<Shape>& memory)
      : p_(params), piece_(piece), rows_(piece.rows), memory_(memory) {}

  __device__ void run() {
    begin();
    walk();
    if (is_split()) {
      write_part((piece_.to - 1) / kSegment);
    } else {
      write_output();
    }
  }

 private:
  static constexpr int kChunk = Shape::kChunk;
  using Seat = TileSeat<Shape>;

  __device__ bool is_split() const { return piece_.item.segment != kAllSegments; }

  __device__ static Seat seat() { return {static_cast<int>(threadIdx.x)}; }
  // For code that few chunks come to, or none: the loop over chunks needs all registers.
  __device__ static Seat rare_seat() { return {thread_read_anew()}; }

  // Of the request; may lie past its end.
  __device__ int row(const Seat& seat, int half) const { return piece_.item.first_row + seat.row(half); }

  __device__ void begin() {
    has_totals_ = false;
    clear();
    load_queries();
  }

  __device__ void clear() {
#pragma unroll
    for (int half = 0; half < 2; ++half) part_[half] = {};
#pragma unroll
    for (int i = 0; i < Shape::kDimTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) values_[i][j] = 0.0f;
    }
  }

  __device__ void load_queries() {
    const auto* q = static_cast<const uint16_t*>(p_.q);
    const uint16_t* starts[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = min(row(seat(), half), rows_.rows - 1);
      starts[half] = q + (rows_.first_token + r / p_.group) * p_.q_token_stride +
                     (piece_.kv_head * p_.group + r % p_.group) * p_.q_head_stride;
    }
#pragma unroll
    for (int step = 0; step < Shape::kDepthSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = step * 16 + i / 2 * 8 + seat().lane() % 4 * 2;
        queries_[step][i] = d < p_.head_dim ? *reinterpret_cast<const uint32_t*>(starts[i % 2] + d) : 0u;
      }
    }
  }

  __device__ void walk() {
    typename Shape::template Reader<View> reader(p_, memory_.stages, piece_);
    reader.start();
    for (int i = 0; i < reader.num_chunks(); ++i) {
      reader.next(i);
      const int start = reader.position_of(i);
      if (i > 0 && start % kSegment == 0) end_segment(start / kSegment - 1);
      attend(reader.keys(i), reader.values(i), start);
      reader.finish(i);
    }
  }

  __device__ void attend(const uint4* keys, const uint4* values, int start) {
    float scores[Shape::kScoreTiles][4];
    score(keys, scores);
    weigh(scores, start);
    add_values(values, scores);
  }

  // Raw scores of the chunk: this warp's part, or all of them where no other warp shares the rows.
  __device__ void score(const uint4* keys, float (&scores)[Shape::kScoreTiles][4]) {
    float own[Shape::kOwnScoreTiles][4] = {};
#pragma unroll
    for (int step = 0; step < Shape::kDepthSteps; step += 2) {
#pragma unroll
      for (int i = 0; i < Shape::kOwnScoreTiles; ++i) {
        const int position = (seat().slice() * Shape::kOwnScoreTiles + i) * 8 + seat().lane() % 8;
        uint32_t b[4];
        load_matrices(b, keys + swizzled<Shape::kDim>(position, step * 2 + seat().lane() / 8));
        mma<Half>(own[i], queries_[step], b[0], b[1]);
        mma<Half>(own[i], queries_[step + 1], b[2], b[3]);
      }
    }
    if constexpr (Shape::kSplit == 1) {
#pragma unroll
      for (int i = 0; i < Shape::kScoreTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) scores[i][j] = own[i][j];
      }
    } else {
      exchange(own, scores);
    }
  }

  // The next writes come after the barrier at the next chunk's start, when all have read these.
  __device__ void exchange(const float (&own)[Shape::kOwnScoreTiles][4],
                           float (&scores)[Shape::kScoreTiles][4]) {
    float4(*shared)[32] = memory_.scores + seat().group() * Shape::kScoreTiles;
#pragma unroll
    for (int i = 0; i < Shape::kOwnScoreTiles; ++i) {
      shared[seat().slice() * Shape::kOwnScoreTiles + i][seat().lane()] =
          make_float4(own[i][0], own[i][1], own[i][2], own[i][3]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Shape::kScoreTiles; ++i) {
      const float4 all = shared[i][seat().lane()];
      scores[i][0] = all.x;
      scores[i][1] = all.y;
      scores[i][2] = all.z;
      scores[i][3] = all.w;
    }
  }

  // Turns raw scores into weights exp2(score - maximum), and moves the rows' sums to the new maximum.
  __device__ void weigh(float (&scores)[Shape::kScoreTiles][4], int start) {
    scale(scores);
    if (start + kChunk - 1 > View::last_seen(rows_, rows_.position(piece_.item.first_row)) ||
        start < rows_.window_start(rows_.position(piece_.last_row(Shape::kGroups * 16))))
      mask(scores, start);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = part_[half].max;
#pragma unroll
      for (int i = 0; i < Shape::kScoreTiles; ++i) {
        highest = fmaxf(highest, fmaxf(scores[i][half * 2], scores[i][half * 2 + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
      const float base = softmax_base(highest), keep = exp2_fast(part_[half].max - base);
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < Shape::kScoreTiles; ++i) {
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j) {
          scores[i][j] = exp2_fast(scores[i][j] - base);
          sum += scores[i][j];
        }
      }
      // Of this lane's columns; the lanes of a row are added up at the end of the segment.
      part_[half] = {highest, multiply_add(part_[half].sum, keep, sum)};
#pragma unroll
      for (int i = 0; i < Shape::kDimTiles; ++i) {
        values_[i][half * 2] *= keep;
        values_[i][half * 2 + 1] *= keep;
      }
    }
  }

  __device__ void scale(float (&scores)[Shape::kScoreTiles][4]) const {
    const float factor = multiply(p_.scale, p_.softcap > 0.0f ? 2.0f * kLog2e / p_.softcap : kLog2e);
#pragma unroll
    for (int i = 0; i < Shape::kScoreTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[i][j] = multiply(scores[i][j], factor);
    }
    if (p_.softcap > 0.0f) cap(scores);
  }

  // tanh(x) = 1 - 2 / (exp(2 x) + 1), with 2 x * log2(e) given.
  __device__ void cap(float (&scores)[Shape::kScoreTiles][4]) const {
    const float limit = multiply(p_.softcap, kLog2e);
#pragma unroll
    for (int i = 0; i < Shape::kScoreTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = multiply(limit, 1.0f - __fdividef(2.0f, exp2_fast(scores[i][j]) + 1.0f));
      }
    }
  }

  // Whatever stood there, a score that its row must not see becomes -inf.
  __device__ void mask(float (&scores)[Shape::kScoreTiles][4], int start) const {
    const Seat seat = rare_seat();
    int first[2], last[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows past the end have the last one's limits; nobody reads their results.
      const int position = rows_.position(min(row(seat, half), rows_.rows - 1));
      first[half] = rows_.window_start(position);
      last[half] = View::last_seen(rows_, position);
    }
#pragma unroll
    for (int i = 0; i < Shape::kScoreTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int position = start + i * 8 + seat.lane() % 4 * 2 + j % 2;
        if (position > last[j / 2] || position < first[j / 2]) scores[i][j] = -INFINITY;
      }
    }
  }

  __device__ void add_values(const uint4* values, const float (&weights)[Shape::kScoreTiles][4]) {
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step) {
      const float (&low)[4] = weights[step * 2];
      const float (&high)[4] = weights[step * 2 + 1];
      const uint32_t a[4] = {pack_pair<Half>(low[0], low[1]), pack_pair<Half>(low[2], low[3]),
                             pack_pair<Half>(high[0], high[1]), pack_pair<Half>(high[2], high[3])};
      const int position = step * 16 + seat().lane() % 16;
#pragma unroll
      for (int i = 0; i < Shape::kDimTiles; i += 2) {
        uint32_t b[4];
        load_matrices_transposed(
            b, values + swizzled<Shape::kDim>(position,
                                              seat().slice() * Shape::kDimTiles + i + seat().lane() / 16));
        mma<Half>(values_[i], a, b[0], b[1]);
        mma<Half>(values_[i + 1], a, b[2], b[3]);
      }
    }
  }

  // Adds up the lanes that share a row.
  __device__ SoftmaxState row_part(int half) const {
    float sum = part_[half].sum;
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    return {part_[half].max, sum};
  }

  __device__ MergeFactors merge_state(const Seat& seat, int half) {
    SoftmaxState& slot = memory_.total_states[half][seat.thread];
    SoftmaxState total = has_totals_ ? slot : SoftmaxState{};
    const MergeFactors factors = merge_into(&total, row_part(half));
    slot = total;
    return factors;
  }

  __device__ void end_segment(int segment) {
    // A large tile has no registers for it: its pieces have one segment each.
    if (Shape::kGroups == 1 && is_split()) {
      write_part(segment);
    } else {
      add_to_totals();
    }
    clear();
  }

  __device__ void add_to_totals() {
    const Seat seat = rare_seat();
    const MergeFactors upper = merge_state(seat, 0), lower = merge_state(seat, 1);
#pragma unroll
    for (int i = 0; i < Shape::kDimTiles; ++i) {
      float4& slot = memory_.totals[i][seat.thread];
      const float4 total = has_totals_ ? slot : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      slot = make_float4(
          merged_value(total.x, values_[i][0], upper), merged_value(total.y, values_[i][1], upper),
          merged_value(total.z, values_[i][2], lower), merged_value(total.w, values_[i][3], lower));
    }
    has_totals_ = true;
  }

  __device__ void write_part(int segment) {
    const Seat seat = rare_seat();
    const int64_t before = int64_t{segment - rows_.first_segment()} * p_.kv_heads + piece_.kv_head;
    float* part = p_.partials + (piece_.item.partial_row + before * rows_.rows) * partial_stride(p_.head_dim);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SoftmaxState state = row_part(half);
      if (row(seat, half) >= rows_.rows) continue;
      float* out = part + row(seat, half) * partial_stride(p_.head_dim);
      if (seat.slice() == 0 && seat.lane() % 4 == 0)
        *reinterpret_cast<float2*>(out) = make_float2(state.max, state.sum);
#pragma unroll
      for (int i = 0; i < Shape::kDimTiles; ++i) {
        if (seat.dim(i) >= p_.head_dim) continue;
        *reinterpret_cast<float2*>(out + kPartialHeader + seat.dim(i)) =
            make_float2(values_[i][half * 2], values_[i][half * 2 + 1]);
      }
    }
  }

  __device__ void write_output() {
    SoftmaxState states[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) states[half] = row_part(half);
    if (has_totals_) {
      add_to_totals();
#pragma unroll
      for (int half = 0; half < 2; ++half) states[half] = memory_.total_states[half][threadIdx.x];
#pragma unroll
      for (int i = 0; i < Shape::kDimTiles; ++i) {
        const float4 total = memory_.totals[i][threadIdx.x];
        values_[i][0] = total.x;
        values_[i][1] = total.y;
        values_[i][2] = total.z;
        values_[i][3] = total.w;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) write_row(half, states[half]);
  }

  __device__ void write_row(int half, const SoftmaxState& total) const {
    const Seat seat = rare_seat();
    const int r = row(seat, half);
    if (r >= rows_.rows) return;
    const int head = piece_.kv_head * p_.group + r % p_.group;
    const float factor = final_factor(total, sink_of<Half>(p_, head));
    auto* out = static_cast<uint16_t*>(p_.out) + (rows_.first_token + r / p_.group) * p_.out_token_stride +
                head * p_.out_head_stride;
#pragma unroll
    for (int i = 0; i < Shape::kDimTiles; ++i) {
      if (seat.dim(i) >= p_.head_dim) continue;
      *reinterpret_cast<uint32_t*>(out + seat.dim(i)) =
          pack_pair<Half>(multiply(values_[i][half * 2], factor), multiply(values_[i][half * 2 + 1], factor));
    }
  }

  const AttentionParams& p_;
  const AttentionPiece& piece_;
  const RequestRows& rows_;
  TileMemory<Shape>& memory_;
  bool has_totals_ = false;
  SoftmaxState part_[2];
  uint32_t queries_[Shape::kDepthSteps][4];
  float values_[Shape::kDimTiles][4];
};

}  // namespace splitserve::cuda
