// Writes this step's keys and values into their slots of the paged cache, as they are or after the norms and
// the rotation of queries and keys: one pass over the step's QKV.
#include "cpu/kernels.h"
#include "cpu/kv_block.h"
#include "cpu/parallel.h"
#include "cpu/turn_head.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

constexpr int64_t kLineBytes = 64;

// Successive tokens whose slots follow each other in one block; slot < 0: one token that has none.
struct Run {
  int64_t token, count, slot;
};

Run run_at(const KvWriteParams& p, int64_t token, int64_t end) {
  Run run{token, 1, p.slot_mapping[token]};
  if (run.slot < 0) return run;
  if (end - token > p.block_size - run.slot % p.block_size)
    end = token + p.block_size - run.slot % p.block_size;
  while (token + run.count < end && p.slot_mapping[token + run.count] == run.slot + run.count) ++run.count;
  return run;
}

template <typename T>
T* row_of(const HeadRows& rows, int64_t token, int64_t head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

// The first byte of the block and head that hold a slot.
template <typename T>
char* block_of(const KvSlots& cache, int64_t block, int64_t head) {
  return reinterpret_cast<char*>(static_cast<T*>(cache.data) + block * cache.block_stride +
                                 head * cache.head_stride);
}

template <typename T>
TokenRows rows_of(const HeadRows& rows, int64_t token, int64_t head) {
  return {reinterpret_cast<const char*>(row_of<T>(rows, token, head)),
          rows.token_stride * static_cast<int64_t>(sizeof(T))};
}

template <typename T>
void write_head(const KvWriteParams& p, const Run& run, int64_t head) {
  constexpr int64_t kElement = sizeof(T);
  const int64_t block = run.slot / p.block_size, offset = run.slot % p.block_size;
  write_keys(block_of<T>(p.k_cache, block, head) + offset * 4, p.block_size, rows_of<T>(p.k, run.token, head),
             run.count, p.head_dim * kElement / 4);
  write_values(static_cast<const T*>(nullptr), block_of<T>(p.v_cache, block, head), offset,
               rows_of<T>(p.v, run.token, head), run.count, p.head_dim);
}

// Has the lines that a run's part of one head is written to fetched: they are cold, as nobody has read them
// since its sequence's last step.
template <typename T>
void fetch_slots(const KvWriteParams& p, const Run& run, int64_t head) {
  constexpr int64_t kElement = sizeof(T), kPair = 4 / kElement;
  const int64_t block = run.slot / p.block_size, offset = run.slot % p.block_size;
  const int64_t key_bytes = p.head_dim / kPair * p.block_size * 4;
  const int64_t pairs = (offset + run.count - 1) / kPair - offset / kPair + 1;
  // A key's units are a block's length apart: on a line each, unless blocks are short.
  const int64_t step = p.block_size * 4 > kLineBytes ? p.block_size * 4 : kLineBytes;
  const char* keys = block_of<T>(p.k_cache, block, head) + offset * 4;
  for (int64_t i = 0; i < key_bytes; i += step) __builtin_prefetch(keys + i, 1);
  const char* values = block_of<T>(p.v_cache, block, head) + offset / kPair * p.head_dim * 4;
  for (int64_t i = 0; i < pairs * p.head_dim * 4; i += kLineBytes) __builtin_prefetch(values + i, 1);
}

// Has a token's heads fetched before they are needed: a projection's output has left the caches near the
// core, and the hardware fetches ahead within a page only.
template <typename T>
void fetch_heads(const HeadRows& rows, int64_t token, int64_t head_dim) {
  for (int64_t head = 0; head < rows.heads; ++head) {
    const T* row = row_of<T>(rows, token, head);
    for (int64_t i = 0; i < head_dim; i += kLineBytes / static_cast<int64_t>(sizeof(T)))
      __builtin_prefetch(row + i);
  }
}

// Turns all heads of one token.
template <typename T>
void turn(const HeadRows& heads, const RotaryKvWriteParams& p, int64_t token, const void* norm) {
  const RotaryParams& r = p.rotary;
  const float* cosines = r.cos_sin + r.positions[token] * r.cos_sin_stride;
  const int64_t half = r.rot_dim / 2;
  turn_heads<T>({row_of<T>(heads, token, 0), heads.head_stride, p.write.head_dim, half, cosines,
                 cosines + half, static_cast<const T*>(norm), r.eps, r.norm_offset},
                heads.heads);
}

// Calls turn(token) for each token before its keys are written.
template <typename T, typename Turn>
void write_tokens(const KvWriteParams& p, int64_t begin, int64_t end, const Turn& turn) {
  for (Run run = run_at(p, begin, end); run.count > 0;) {
    const int64_t next_token = run.token + run.count;
    const Run next = next_token < end ? run_at(p, next_token, end) : Run{};
    const int64_t fetched = next.count > 0 && next.slot >= 0 ? p.k.heads : 0;
    for (int64_t i = 0; i < run.count; ++i) {
      for (int64_t head = fetched * i / run.count; head < fetched * (i + 1) / run.count; ++head)
        fetch_slots<T>(p, next, head);
      fetch_heads<T>(p.v, run.token + i, p.head_dim);
      turn(run.token + i);
    }
    for (int64_t head = 0; run.slot >= 0 && head < p.k.heads; ++head) write_head<T>(p, run, head);
    run = next;
  }
}

template <typename T>
void write(const KvWriteParams& p) {
  parallel_for(p.tokens, p.tokens * p.k.heads * p.head_dim,
               [&p](int64_t begin, int64_t end) { write_tokens<T>(p, begin, end, [](int64_t) {}); });
}

template <typename T>
void turn_and_write(const RotaryKvWriteParams& p) {
  const int64_t work = p.write.tokens * (p.q.heads + p.write.k.heads) * p.write.head_dim;
  parallel_for(p.write.tokens, work, [&p](int64_t begin, int64_t end) {
    write_tokens<T>(p.write, begin, end, [&p, end](int64_t token) {
      if (token + 1 < end) {
        fetch_heads<T>(p.q, token + 1, p.write.head_dim);
        fetch_heads<T>(p.write.k, token + 1, p.write.head_dim);
      }
      turn<T>(p.q, p, token, p.rotary.q_norm);
      turn<T>(p.write.k, p, token, p.rotary.k_norm);
    });
  });
}

}  // namespace

void kv_write(const KvWriteParams& params) {
  if (params.dtype == DType::kBFloat16) {
    write<BFloat16>(params);
  } else {
    write<float>(params);
  }
}

void rotary_kv_write(const RotaryKvWriteParams& params) {
  if (params.write.dtype == DType::kBFloat16) {
    turn_and_write<BFloat16>(params);
  } else {
    turn_and_write<float>(params);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
