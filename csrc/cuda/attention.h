// Arguments of paged attention on the GPU, the fixed borders its sums are split at, and what a plan holds.
#pragma once

#include "common/cache_format.h"
#include "common/dtype.h"
#include "common/host_device.h"

namespace splitserve {

// Positions are summed in segments that begin at absolute position 0, each from nothing, and merged in order.
inline constexpr int kSegment = 256;
inline constexpr int kAttentionThreads = 128;
// Query rows (one query head of one token) of a tile that all warps share, and of one with rows per warp.
inline constexpr int kSmallRows = 16;

SPLITSERVE_HOST_DEVICE constexpr int large_rows(int head_dim) { return head_dim <= 128 ? 64 : 32; }

// All segments of a tile, or some that follow each other.
struct AttentionItem {
  int32_t request;
  int32_t first_row;     // of the request's query_len * group rows
  int32_t segment;       // kAllSegments: the tile is done as a whole and writes its output
  int32_t num_segments;  // each of which writes a partial result
  int32_t partial_row;   // where the tile's partial results begin
};
inline constexpr int kAllSegments = -1;

// Makes and reads the int32 words of a plan: a header, one merge per split request, then the items.
struct AttentionPlan {
  int32_t* words;
  int32_t requests;
  int32_t max_items;

  static constexpr int kHeaderWords = 8;
  static constexpr int kItemWords = 5;

  SPLITSERVE_HOST_DEVICE int32_t& num_items() const { return words[0]; }
  SPLITSERVE_HOST_DEVICE int32_t& num_merges() const { return words[1]; }
  // Pieces of work, (item, KV head), that thread blocks have taken beside their first; 0 between two calls.
  SPLITSERVE_HOST_DEVICE int32_t& num_taken() const { return words[2]; }
  // The shapes a plan was made for, so that it is not used for others.
  SPLITSERVE_HOST_DEVICE void stamp(int32_t group, int32_t head_dim, int32_t kv_heads,
                                    int32_t sliding_window) const {
    words[3] = group;
    words[4] = head_dim;
    words[5] = kv_heads;
    words[6] = sliding_window;
  }
  SPLITSERVE_HOST_DEVICE bool is_for(int32_t group, int32_t head_dim, int32_t kv_heads,
                                     int32_t sliding_window) const {
    return words[3] == group && words[4] == head_dim && words[5] == kv_heads && words[6] == sliding_window;
  }
  // `segment` is the first of the request.
  SPLITSERVE_HOST_DEVICE AttentionItem* merges() const {
    return reinterpret_cast<AttentionItem*>(words + kHeaderWords);
  }
  SPLITSERVE_HOST_DEVICE AttentionItem* items() const { return merges() + requests; }
};

// What a plan depends on beside the lengths.
struct PlanParams {
  AttentionPlan plan;
  const int32_t* cu_seqlens_q;  // [requests + 1]
  const int32_t* seq_lens;      // [requests]
  int32_t group, kv_heads, head_dim;
  int32_t max_seq_len;
  int32_t sliding_window;
  int64_t partial_rows;   // what a split may fill
  int64_t thread_blocks;  // that attend at once
};

struct AttentionParams {
  void* out;      // [tokens, heads, head_dim]
  const void* q;  // [tokens, heads, head_dim]
  int64_t out_token_stride, out_head_stride;
  int64_t q_token_stride, q_head_stride;
  const void* k;  // [num_blocks, kv_heads, block_size, head_dim], or codes, see cache_codes.cuh
  const void* v;  // like k, same strides
  int64_t block_stride, head_stride, slot_stride;
  CacheFormat format;
  const int32_t* block_tables;  // [requests, table_width]
  int64_t block_table_stride;
  const int32_t* cu_seqlens_q;  // [requests + 1]
  const int32_t* seq_lens;      // [requests]
  AttentionPlan plan;
  float* partials;    // [rows, partial_stride(head_dim)]
  const void* sinks;  // [heads], scores of the queries' dtype; nullptr: none
  int32_t tokens, requests, heads, kv_heads, group, head_dim, block_size, table_width, num_blocks;
  float scale;             // of scores
  float softcap;           // 0: none
  int32_t sliding_window;  // a row sees this many positions up to its own; 0: all
  DType dtype;
};

// A partial row: maximum and sum, two words of padding, values.
inline constexpr int kPartialHeader = 4;
SPLITSERVE_HOST_DEVICE constexpr int64_t partial_stride(int head_dim) { return kPartialHeader + head_dim; }

// The query rows of one request and one KV head, and what they may see.
struct RequestRows {
  int32_t first_token;     // row of q
  int32_t first_position;  // its absolute position
  int32_t rows;            // query_len * group
  int32_t group;
  int32_t sliding_window;

  SPLITSERVE_HOST_DEVICE int32_t position(int32_t row) const { return first_position + row / group; }
  // A row sees [window_start(position), position].
  SPLITSERVE_HOST_DEVICE int32_t window_start(int32_t position) const {
    return sliding_window > 0 && position >= sliding_window ? position + 1 - sliding_window : 0;
  }
  SPLITSERVE_HOST_DEVICE int32_t first_segment() const { return window_start(first_position) / kSegment; }
  SPLITSERVE_HOST_DEVICE int32_t end_segment() const { return position(rows - 1) / kSegment + 1; }
  SPLITSERVE_HOST_DEVICE int32_t tile_rows(int head_dim) const {
    return rows <= kSmallRows ? kSmallRows : large_rows(head_dim);
  }
  SPLITSERVE_HOST_DEVICE int32_t num_tiles(int head_dim) const {
    return (rows + tile_rows(head_dim) - 1) / tile_rows(head_dim);
  }
};

SPLITSERVE_HOST_DEVICE inline RequestRows request_rows(const int32_t* cu_seqlens_q, const int32_t* seq_lens,
                                                       int32_t request, int32_t group,
                                                       int32_t sliding_window) {
  const int32_t first_token = cu_seqlens_q[request], query_len = cu_seqlens_q[request + 1] - first_token;
  return {first_token, seq_lens[request] - query_len, query_len * group, group, sliding_window};
}

// Rows that see themselves and what is before them, over a cache whose blocks a table names.
struct CausalView {
  // Those of one request, with `group` query heads to each KV head.
  SPLITSERVE_HOST_DEVICE static RequestRows rows_of(const AttentionParams& p, int32_t request,
                                                    int32_t group) {
    return request_rows(p.cu_seqlens_q, p.seq_lens, request, group, p.sliding_window);
  }
  // The last position that a row at `position` sees; the first one is RequestRows::window_start().
  SPLITSERVE_HOST_DEVICE static int32_t last_seen(const RequestRows&, int32_t position) { return position; }
  // The block that holds a position; one that does not exist is not read.
  SPLITSERVE_HOST_DEVICE static int32_t block_of(const AttentionParams& p, const RequestRows&,
                                                 int32_t request, int32_t position) {
    const int32_t entry = position / p.block_size;
    // A wrong table must not read outside the cache.
    if (entry >= p.table_width) return -1;
    const int32_t block = p.block_tables[request * p.block_table_stride + entry];
    return block < p.num_blocks ? block : -1;
  }
};

// Rows of whole sequences, which see as far behind them as before them. There is no cache: keys and values of
// each token of the step are a block.
struct WholeView {
  SPLITSERVE_HOST_DEVICE static RequestRows rows_of(const AttentionParams& p, int32_t sequence,
                                                    int32_t group) {
    const int32_t first_token = p.cu_seqlens_q[sequence];
    return {first_token, 0, (p.cu_seqlens_q[sequence + 1] - first_token) * group, group, p.sliding_window};
  }
  SPLITSERVE_HOST_DEVICE static int32_t last_seen(const RequestRows& rows, int32_t position) {
    const int32_t last = rows.position(rows.rows - 1);
    if (rows.sliding_window == 0) return last;
    const int32_t reached = position + rows.sliding_window - 1;
    return reached < last ? reached : last;
  }
  SPLITSERVE_HOST_DEVICE static int32_t block_of(const AttentionParams& p, const RequestRows& rows, int32_t,
                                                 int32_t position) {
    const int32_t token = rows.first_token + position;
    return token < p.num_blocks ? token : -1;
  }
};

}  // namespace splitserve
