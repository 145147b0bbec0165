// The two products of attention: some rows with the keys, and their weights with the values, of one chunk.
//
// Each sum is one lane of one register and is added up in one order, along a key's dimensions or along the
// chunk's positions. So its bits depend on the row alone, never on the rows and registers beside it.
#pragma once

#include "cpu/attention_chunk.h"
#include "cpu/slow_pairs.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows whose sums are in registers at the same time, and registers of each of so many rows.
#if defined(__AVX512BF16__)
template <typename T>
inline constexpr int kGroupRows = kIsSplit<T> ? 12 : 6;
template <typename T, int kRows>
inline constexpr int kGroupVecs = kIsSplit<T> && kRows > 5 ? 2 : 4;
#else
template <typename T>
inline constexpr int kGroupRows = 4;
template <typename T, int kRows>
inline constexpr int kGroupVecs = kVecRegisters == 32 ? 4 : 2;
#endif

template <int kCount>
struct Count {
  static constexpr int value = kCount;
};

// Calls fn(Count<n>()), n from 1 to kMax.
template <int kMax, typename Fn>
SPLITSERVE_INLINE void with_count(int64_t n, const Fn& fn) {
  if (n == kMax) return fn(Count<kMax>());
  if constexpr (kMax > 1) with_count<kMax - 1>(n, fn);
}

// sums[i][v] += left(i, step) * right(step, v) for the steps from begin to end, in order, and fetch(step).
template <typename T, int kRows, int kVecs, typename Left, typename Right, typename Fetch>
SPLITSERVE_INLINE void add_products(Vec (&sums)[kRows][kVecs], int64_t begin, int64_t end, const Left& left,
                                    const Right& right, const Fetch& fetch) {
  using Step = DotStep<T>;
  for (int64_t step = begin; step < end; ++step) {
    fetch(step);
    typename Step::Operand operands[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) operands[v] = right(step, v);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const typename Step::Operand operand = left(i, step);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[i][v] = Step::accumulate(sums[i][v], operand, operands[v]);
    }
  }
}

// dots[i, j] = query i times key j of the chunk, for kVecs registers of positions from register `first` on.
// Queries are [kRows, head_dim], dots [kRows, kChunk]. kFetch: asks for what is wanted next meanwhile.
template <typename T, int kRows, int kVecs, bool kFetch>
[[gnu::noinline]] void score(const Stream<T>& stream, int64_t first, const Shared<T>* queries,
                             int64_t head_dim, float* dots, const Stream<T>* wanted) {
  constexpr int kPair = DotStep<T>::kPair;
  const T* keys[kVecs];
  for (int v = 0; v < kVecs; ++v) keys[v] = stream.pieces[first + v];
  const int64_t stride = stream.stride;
  Vec sums[kRows][kVecs] = {};
  as_pairs<T>(sums, [&]() __attribute__((always_inline)) {
    add_products<T, kRows, kVecs>(
        sums, 0, head_dim / kPair,
        [&](int i, int64_t step) __attribute__((always_inline)) {
          return DotStep<T>::broadcast(queries + i * head_dim + step * kPair);
        },
        [&](int64_t step, int v)
            __attribute__((always_inline)) { return DotStep<T>::load(keys[v] + step * stride); },
        [&](int64_t step) __attribute__((always_inline)) {
          if (kFetch) wanted->fetch(step);
        });
  });
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) store(dots + i * kChunk + (first + v) * kLanes, sums[i][v]);
  }
}

// A pair of positions with zeros in place of the one that is not seen: a weight of 0 does not hide a NaN.
SPLITSERVE_INLINE Vec only_seen(Vec values, bool) { return values; }
#if defined(__AVX512BF16__)
SPLITSERVE_INLINE __m512bh only_seen(__m512bh values, bool sees_first) {
  const __m512i half = _mm512_set1_epi32(static_cast<int>(sees_first ? 0x0000ffffu : 0xffff0000u));
  return reinterpret_cast<__m512bh>(_mm512_and_si512(reinterpret_cast<__m512i>(values), half));
}
#elif defined(SPLITSERVE_HAS_BF16_DOT)
SPLITSERVE_INLINE bfloat16x8_t only_seen(bfloat16x8_t values, bool sees_first) {
  const uint32x4_t half = vdupq_n_u32(sees_first ? 0x0000ffffu : 0xffff0000u);
  return vreinterpretq_bf16_u32(vandq_u32(vreinterpretq_u32_bf16(values), half));
}
#endif
template <typename Split>
SPLITSERVE_INLINE Split only_seen(Split values, bool sees_first) {
  return {sees_first ? values.even : Vec{}, sees_first ? Vec{} : values.odd};
}

// Weights of some rows, [kRows, kChunk], of which row i has those of the positions seen[i].
template <typename T, int kRows>
struct Weights {
  static constexpr int kPair = DotStep<T>::kPair;

  const Shared<T>* data;
  const Range* seen;

  SPLITSERVE_INLINE typename DotStep<T>::Operand pair(int i, int64_t pair) const {
    return DotStep<T>::broadcast(data + i * kChunk + pair * kPair);
  }

  // The pairs of positions of which some row sees one.
  Range any_pairs() const { return {seen[0].begin / kPair, (seen[kRows - 1].end + kPair - 1) / kPair}; }

  // The pairs that every row sees whole; no pair is its begin if there is none.
  Range shared_pairs() const {
    const Range shared{(seen[kRows - 1].begin + kPair - 1) / kPair, seen[0].end / kPair};
    return shared.empty() ? Range{-1, -1} : shared;
  }

  // Adds one pair of positions, as far as each row sees it.
  template <int kVecs>
  SPLITSERVE_INLINE void add_seen(Vec (&sums)[kRows][kVecs], int64_t position_pair,
                                  const typename DotStep<T>::Operand (&values)[kVecs]) const {
    const int64_t first = position_pair * kPair, last = first + kPair - 1;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const bool sees_first = seen[i].holds(first), sees_last = seen[i].holds(last);
      if (!sees_first && !sees_last) continue;
      const typename DotStep<T>::Operand weight = pair(i, position_pair);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        const auto value = sees_first && sees_last ? values[v] : only_seen(values[v], sees_first);
        sums[i][v] = DotStep<T>::accumulate(sums[i][v], weight, value);
      }
    }
  }
};

// Some dimensions of a KV head that begins `offset` elements behind the one the chunk was looked for.
struct Dims {
  int64_t offset, first, count;
};

// totals[i, d] += weights of row i times values of the chunk, for kVecs registers of dimensions, or, if
// kIsTail, for those of one that is not whole. `totals` is [kRows, width]. The chunk is summed from zero:
// that loses less than adding each position to a long running sum.
template <typename T, int kRows, int kVecs, bool kFetch, bool kIsTail = false>
[[gnu::noinline]] void add_values(const Chunk<T>& chunk, const Dims& dims, const Weights<T, kRows>& weights,
                                  float* totals, int64_t width, const Stream<T>* wanted) {
  constexpr int kPair = DotStep<T>::kPair;
  const int64_t offset = dims.offset + dims.first * kPair;
  const auto values = [&](int64_t pair, int v) __attribute__((always_inline)) {
    const T* start = chunk.values[pair] + offset + v * kLanes * kPair;
    return kIsTail ? load_end(start, dims.count * kPair) : DotStep<T>::load(start);
  };
  const auto weight = [&](int i, int64_t pair)
                          __attribute__((always_inline)) { return weights.pair(i, pair); };
  const auto fetch = [&](int64_t pair) __attribute__((always_inline)) {
    if (kFetch) wanted->fetch(dims.first / kPair + pair * (kVecs * kLanes) / kChunk);
  };
  const Range any = weights.any_pairs(), shared = weights.shared_pairs();
  Vec sums[kRows][kVecs] = {};
  as_pairs<T>(sums, [&]() __attribute__((always_inline)) {
    for (int64_t pair = any.begin; pair < any.end;) {
      if (pair == shared.begin) {
        add_products<T, kRows, kVecs>(sums, shared.begin, shared.end, weight, values, fetch);
        pair = shared.end;
        continue;
      }
      typename DotStep<T>::Operand operands[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) operands[v] = values(pair, v);
      weights.add_seen(sums, pair++, operands);
    }
  });
  if (kFetch) {
    for (int64_t pair = any.end; pair < kChunk / kPair; ++pair) fetch(pair);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      float* total = totals + i * width + dims.first + v * kLanes;
      store(total, load(total) + sums[i][v]);
    }
  }
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
