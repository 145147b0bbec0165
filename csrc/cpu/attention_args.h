// Checks of the arguments that paged_attention and latent_attention have in common.
#pragma once

#include "common/check.h"
#include "cpu/attention.h"

namespace splitserve {

// The requests of a step, and the blocks that they read of a cache of `num_blocks`.
inline void set_requests(AttentionParams* p, const TensorView& block_tables, const TensorView& cu_seqlens_q,
                         const TensorView& seq_lens, int64_t num_blocks) {
  cpu_arg(block_tables, "block_tables").rank(2).type({kInt32Type}).rows_contiguous();
  p->requests = block_tables.size(0);
  p->max_blocks = block_tables.size(1);
  p->num_blocks = num_blocks;
  p->block_tables = static_cast<const int32_t*>(block_tables.data_ptr());
  p->block_table_stride = block_tables.stride(0);
  p->cu_seqlens_q = cpu_arg(cu_seqlens_q, "cu_seqlens_q").vector(kInt32Type, p->requests + 1).data<int32_t>();
  p->seq_lens = cpu_arg(seq_lens, "seq_lens").vector(kInt32Type, p->requests).data<int32_t>();
}

inline float scale_arg(double scale) {
  SPLITSERVE_CHECK_VALUE(scale > 0.0 && scale < 1e6, "scale: must be positive and finite, got " << scale);
  return static_cast<float>(scale);
}

// Every block a request's positions name must exist: a wrong table must raise an error, not read other
// memory.
inline void check_request(const AttentionParams& p, int64_t r) {
  const int64_t query_len = p.cu_seqlens_q[r + 1] - p.cu_seqlens_q[r], seq_len = p.seq_lens[r];
  SPLITSERVE_CHECK_VALUE(query_len >= 0, "cu_seqlens_q: decreases at request " << r);
  if (query_len == 0) return;
  SPLITSERVE_CHECK_VALUE(seq_len >= query_len, "seq_lens: request " << r << " has " << query_len
                                                                    << " query tokens but length "
                                                                    << seq_len);
  const int64_t blocks = (seq_len + p.block_size - 1) / p.block_size;
  SPLITSERVE_CHECK_VALUE(blocks <= p.max_blocks, "block_tables: request " << r << " needs " << blocks
                                                                          << " blocks, has " << p.max_blocks);
  const int64_t seen_from = p.sliding_window > 0 ? seq_len - query_len + 1 - p.sliding_window : 0;
  for (int64_t b = (seen_from > 0 ? seen_from : 0) / p.block_size; b < blocks; ++b) {
    const int64_t block = p.block_tables[r * p.block_table_stride + b];
    SPLITSERVE_CHECK_VALUE(block >= 0 && block < p.num_blocks, "block_tables: request "
                                                                   << r << " names block " << block << " of "
                                                                   << p.num_blocks);
  }
}

inline void check_lengths(const AttentionParams& p) {
  SPLITSERVE_CHECK_VALUE(p.cu_seqlens_q[0] == 0 && p.cu_seqlens_q[p.requests] == p.tokens,
                         "cu_seqlens_q: must run from 0 to the " << p.tokens << " rows of q");
  for (int64_t r = 0; r < p.requests; ++r) check_request(p, r);
}

}  // namespace splitserve
