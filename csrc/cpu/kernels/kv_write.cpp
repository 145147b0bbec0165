// Writes this step's keys and values into their slots of the paged cache, as they are or after the norms and
// the rotation of queries and keys: one pass over the step's QKV.
#include "cpu/coded_block.h"
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

// How a cache holds elements of T: as they are, or as codes; in pairs of dimensions of a key, or of tokens of
// a value.
template <typename T, typename Codes>
struct Stored {
  static constexpr bool kIsPlain = Codes::kFormat == CacheFormat::kPlain;
  static constexpr int64_t kElement = kIsPlain ? sizeof(T) : 1, kPair = kIsPlain ? 4 / kElement : 2;

  // Elements of a key or value.
  static int64_t row(const KvWriteParams& p) { return p.head_dim + scale_bytes(Codes::kFormat); }
};

// The first byte of the block and head that hold a slot.
template <typename T, typename Codes>
char* block_of(const KvSlots& cache, int64_t block, int64_t head) {
  return static_cast<char*>(cache.data) +
         (block * cache.block_stride + head * cache.head_stride) * Stored<T, Codes>::kElement;
}

template <typename T>
TokenRows rows_of(const HeadRows& rows, int64_t token, int64_t head) {
  return {reinterpret_cast<const char*>(row_of<T>(rows, token, head)),
          rows.token_stride * static_cast<int64_t>(sizeof(T))};
}

template <typename T, typename Codes>
void write_head(const KvWriteParams& p, const Run& run, int64_t head) {
  const int64_t block = run.slot / p.block_size, offset = run.slot % p.block_size;
  char* const keys = block_of<T, Codes>(p.k_cache, block, head);
  char* const values = block_of<T, Codes>(p.v_cache, block, head);
  const TokenRows k = rows_of<T>(p.k, run.token, head), v = rows_of<T>(p.v, run.token, head);
  if constexpr (Stored<T, Codes>::kIsPlain) {
    write_keys(keys + offset * 4, p.block_size, k, run.count,
               p.head_dim * static_cast<int64_t>(sizeof(T)) / 4);
    write_values(static_cast<const T*>(nullptr), values, offset, v, run.count, p.head_dim);
  } else {
    const int64_t row = Stored<T, Codes>::row(p);
    write_code_rows<Codes, KeyBytes>({reinterpret_cast<uint8_t*>(keys), p.block_size, row, offset}, k,
                                     run.count);
    write_code_rows<Codes, ValueBytes>({reinterpret_cast<uint8_t*>(values), p.block_size, row, offset}, v,
                                       run.count);
  }
}

// Has the lines that a run's part of one head is written to fetched: they are cold, as nobody has read them
// since its sequence's last step.
template <typename T, typename Codes>
void fetch_slots(const KvWriteParams& p, const Run& run, int64_t head) {
  constexpr int64_t kPair = Stored<T, Codes>::kPair, kUnit = kPair * Stored<T, Codes>::kElement;
  const int64_t block = run.slot / p.block_size, offset = run.slot % p.block_size;
  const int64_t row = Stored<T, Codes>::row(p), key_bytes = row / kPair * p.block_size * kUnit;
  const int64_t pairs = (offset + run.count - 1) / kPair - offset / kPair + 1;
  // A key's units are a block's length apart: on a line each, unless blocks are short.
  const int64_t step = p.block_size * kUnit > kLineBytes ? p.block_size * kUnit : kLineBytes;
  const char* keys = block_of<T, Codes>(p.k_cache, block, head) + offset * kUnit;
  for (int64_t i = 0; i < key_bytes; i += step) __builtin_prefetch(keys + i, 1);
  const char* values = block_of<T, Codes>(p.v_cache, block, head) + offset / kPair * row * kUnit;
  for (int64_t i = 0; i < pairs * row * kUnit; i += kLineBytes) __builtin_prefetch(values + i, 1);
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
template <typename T, typename Codes, typename Turn>
void write_tokens(const KvWriteParams& p, int64_t begin, int64_t end, const Turn& turn) {
  for (Run run = run_at(p, begin, end); run.count > 0;) {
    const int64_t next_token = run.token + run.count;
    const Run next = next_token < end ? run_at(p, next_token, end) : Run{};
    const int64_t fetched = next.count > 0 && next.slot >= 0 ? p.k.heads : 0;
    for (int64_t i = 0; i < run.count; ++i) {
      for (int64_t head = fetched * i / run.count; head < fetched * (i + 1) / run.count; ++head)
        fetch_slots<T, Codes>(p, next, head);
      fetch_heads<T>(p.v, run.token + i, p.head_dim);
      turn(run.token + i);
    }
    for (int64_t head = 0; run.slot >= 0 && head < p.k.heads; ++head) write_head<T, Codes>(p, run, head);
    run = next;
  }
}

template <typename T, typename Codes>
void write(const KvWriteParams& p) {
  parallel_for(p.tokens, p.tokens * p.k.heads * p.head_dim,
               [&p](int64_t begin, int64_t end) { write_tokens<T, Codes>(p, begin, end, [](int64_t) {}); });
}

template <typename T, typename Codes>
void turn_and_write(const RotaryKvWriteParams& p) {
  const int64_t work = p.write.tokens * (p.q.heads + p.write.k.heads) * p.write.head_dim;
  parallel_for(p.write.tokens, work, [&p](int64_t begin, int64_t end) {
    write_tokens<T, Codes>(p.write, begin, end, [&p, end](int64_t token) {
      if (token + 1 < end) {
        fetch_heads<T>(p.q, token + 1, p.write.head_dim);
        fetch_heads<T>(p.write.k, token + 1, p.write.head_dim);
      }
      turn<T>(p.q, p, token, p.rotary.q_norm);
      turn<T>(p.write.k, p, token, p.rotary.k_norm);
    });
  });
}

// Calls run<T, Codes>() for the elements of keys and values and the form in which the cache has them.
template <typename Run>
void with_types(const KvWriteParams& p, const Run& run) {
  if (p.dtype == DType::kFloat32) return run.template operator()<float, NoCodes>();
  switch (p.format) {
    case CacheFormat::kPlain:
      return run.template operator()<BFloat16, NoCodes>();
    case CacheFormat::kInt8:
      return run.template operator()<BFloat16, Int8Codes>();
    case CacheFormat::kFp8:
      return run.template operator()<BFloat16, Fp8Codes>();
  }
}

}  // namespace

void kv_write(const KvWriteParams& params) {
  with_types(params, [&params]<typename T, typename Codes>() { write<T, Codes>(params); });
}

void rotary_kv_write(const RotaryKvWriteParams& params) {
  with_types(params.write, [&params]<typename T, typename Codes>() { turn_and_write<T, Codes>(params); });
}

}  // namespace splitserve::SPLITSERVE_ISA
