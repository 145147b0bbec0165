// Words of some rows, and their products with codes as they lie in memory.
#pragma once

#include "cpu/row_words.h"
#include "cpu/word_weights.h"

#if defined(SPLITSERVE_MULTIPLIES_WORDS)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows whose sums, of two registers of outputs and two phases, stay in registers.
inline constexpr int kStoredRows = kVecRegisters == 32 ? 6 : 3;
// The same one phase after the other, where an operand of weights is loaded at a time.
inline constexpr int kWordRows = 2 * kStoredRows;

// The words of some rows, from a block on.
template <typename Dot>
struct WordRows {
  const char* words;  // rows are kStretchBytes away from each other
  const float *scales, *sums;
  const int32_t *first, *rest;
  int64_t rows, stride, part_stride, depth, block;

  WordRows(const RowWords& all, int64_t row, int64_t first_block)
      : words(all.words + word_offset<Dot>(first_block * all.depth, row, all.rows)),
        scales(all.scales + first_block * all.stride + row),
        sums(all.sums + first_block * all.parts * all.stride + row),
        first(all.first + first_block * all.parts * all.stride + row),
        rest(all.rest + first_block * all.parts * all.stride + row),
        rows(all.rows),
        stride(all.stride),
        part_stride(all.parts * all.stride),
        depth(all.depth),
        block(first_block) {}

  SPLITSERVE_INLINE const char* quad(int64_t row, int64_t place) const {
    return words + row * kStretchBytes<Dot> + place * kQuadDepth * Dot::kWordBytes;
  }
  SPLITSERVE_INLINE void to_next_block() {
    words += depth * Dot::kWordBytes;
    if (++block * depth % kStretchInputs == 0) words += (rows - 1) * kStretchBytes<Dot>;
    scales += stride, sums += part_stride, first += part_stride, rest += part_stride;
  }
};

// Codes as they lie in memory.
template <typename Format>
struct StoredQuads : Format {
  static constexpr Fetched kFetched{static_cast<int>(Format::kBlockBytes / kFetchedLineBytes), true};
};

// sums[v] += the products of a row's quad in a phase.
template <typename Dot, int kPhase>
SPLITSERVE_INLINE void add_phase(IntVec* sums, const typename Dot::Weights (&weights)[kPairVecs],
                                 const char* words) {
  const typename Dot::Inputs inputs = Dot::template inputs<kPhase>(words);
#pragma GCC unroll 2
  for (int v = 0; v < kPairVecs; ++v) sums[v] = Dot::accumulate(sums[v], weights[v], inputs);
}

// sums[phase][i][v] += the products of a quad, of kPairs pairs of registers from `pair` on.
template <typename Codes, typename Dot, int kPlace, int kPairs, int kRows, int kVecs>
SPLITSERVE_INLINE void add_quad(IntVec (&sums)[Dot::kPhases][kRows][kVecs], const char* codes, int64_t quad,
                                int pair, const WordRows<Dot>& x) {
#pragma GCC unroll 2
  for (int p = 0; p < kPairs; ++p) {
    UintVec bytes[kPairVecs];
    Codes::template load<kPlace>(codes, quad, pair + p, bytes);
    const typename Dot::Weights weights[kPairVecs] = {Dot::weights(bytes[0]), Dot::weights(bytes[1])};
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const char* const own = x.quad(i, quad);
      add_phase<Dot, 0>(sums[0][i] + p * kPairVecs, weights, own);
      if constexpr (Dot::kPhases == 2) add_phase<Dot, 1>(sums[1][i] + p * kPairVecs, weights, own);
    }
  }
}

// The same of as many quads as codes lie together.
template <typename Codes, typename Dot, int kPairs, int kRows, int kVecs>
SPLITSERVE_INLINE void add_turn(IntVec (&sums)[Dot::kPhases][kRows][kVecs], const char* codes, int64_t quad,
                                int pair, const WordRows<Dot>& x) {
  add_quad<Codes, Dot, 0, kPairs>(sums, codes, quad, pair, x);
  add_quad<Codes, Dot, 1, kPairs>(sums, codes, quad + 1, pair, x);
  if constexpr (Codes::kBlockQuads == 4) {
    add_quad<Codes, Dot, 2, kPairs>(sums, codes, quad + 2, pair, x);
    add_quad<Codes, Dot, 3, kPairs>(sums, codes, quad + 3, pair, x);
  }
}

// Lines that are asked for while a stretch is multiplied, evenly; all at once would keep loads waiting.
template <int kPhases>
struct FetchedEvenly {
  const char* start;
  int64_t lines, asked, done;

  SPLITSERVE_INLINE void next_quad() {
    constexpr int64_t kQuads = kStretchInputs / kQuadDepth * kVecPairs * kPhases;
    for (asked += lines; asked >= kQuads; asked -= kQuads, ++done)
      __builtin_prefetch(start + done * kFetchedLineBytes);
  }
};

// Of a quad of a panel that was decoded: [operands][32][4 bytes or 2 words].
template <typename Dot>
inline constexpr int64_t kOperandBytes = Dot::kOperands * kQuadBytes;

// Register `vec` of a quad's outputs.
template <typename Dot>
SPLITSERVE_INLINE void store_operands(char* quad, int vec, UintVec bytes) {
  const typename Dot::Weights weights = Dot::weights(bytes);
  char* const to = quad + vec * static_cast<int64_t>(sizeof(Vec));
  if constexpr (Dot::kOperands == 1) {
    std::memcpy(to, &weights, sizeof weights);
  } else {
    std::memcpy(to, &weights.even, sizeof weights.even);
    std::memcpy(to + kQuadBytes, &weights.odd, sizeof weights.odd);
  }
}

// sums[i][v] += the products of a pair of registers of `quads` decoded quads, in a phase.
template <typename Dot, int kPhase, int kRows>
SPLITSERVE_INLINE void add_decoded_phase(IntVec (&sums)[kRows][kPairVecs], const char* quads, int64_t count,
                                         int pair, const WordRows<Dot>& x,
                                         FetchedEvenly<Dot::kPhases>* ahead) {
  constexpr int64_t kVecBytes = sizeof(Vec);
  const char* weights = quads + pair * kPairVecs * kVecBytes;
  for (int64_t quad = 0; quad < count; ++quad) {
    ahead->next_quad();
#pragma GCC unroll 2
    for (int operand = 0; operand < Dot::kOperands; ++operand, weights += kQuadBytes) {
      const IntVec first = reinterpret_cast<IntVec>(load_bytes(weights)),
                   second = reinterpret_cast<IntVec>(load_bytes(weights + kVecBytes));
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const IntVec inputs = broadcast_four(x.quad(i, quad) + (kPhase + operand) * 4);
        sums[i][0] = Dot::accumulate(sums[i][0], first, inputs);
        sums[i][1] = Dot::accumulate(sums[i][1], second, inputs);
      }
    }
  }
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
