// Blocks of rows against panels of a linear layer whose weights are codes: rows are words, and products of
// integers, which are exact.
//
// The sum of a block of inputs becomes a float, is scaled and added to those of the blocks before. So the
// bits of an output depend on its row and column alone.
#pragma once

#include "cpu/linear_decoded.h"
#include "cpu/word_rows.h"

#if defined(SPLITSERVE_MULTIPLIES_WORDS)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Codes of a panel's blocks, from one of them on.
struct CodeBlocks {
  const char* codes;                     // of the first
  int64_t bytes;                         // from those of a block to those of the next
  int64_t quads;                         // of a block
  int64_t block;                         // the first one
  const float (*scales)[2][kPanelCols];  // of blocks, and offsets, where they were made floats; else nullptr
  const GroupScales* groups;             // nullptr if scales lie between the codes, or there are none
  const char* group_scales;              // of the panel
  const char* ahead;                     // what is fetched meanwhile begins there
};

// Scales of a block, or nullptr, and offsets, or nullptr.
struct BlockScales {
  const float *scales, *offsets;
};

SPLITSERVE_INLINE BlockScales scales_of(const CodeBlocks& own, int64_t block,
                                        float (&buffers)[2][kPanelCols]) {
  if (own.scales != nullptr) {
    const bool has_offsets = own.groups != nullptr && own.groups->has_offsets;
    return {own.scales[block][0], has_offsets ? own.scales[block][1] : nullptr};
  }
  if (own.groups == nullptr) return {nullptr, nullptr};
  const auto scales = [&](int64_t kind) __attribute__((always_inline)) {
    return scales_of_group(*own.groups, own.group_scales, own.block + block, kind, buffers[kind]);
  };
  return {scales(0), own.groups->has_offsets ? scales(1) : nullptr};
}

// Operands that were made of the codes before; scales are kept beside them.
struct DecodedQuads {
  static constexpr int64_t kScaleBytes = 0;
};

// totals [kRows, 32] += what sums of a block are worth, of kVecs registers from `first` on.
template <typename Codes, typename Dot, int kRows, int kVecs>
SPLITSERVE_INLINE void add_block(float* totals, const IntVec (&sums)[kRows][kVecs], const WordRows<Dot>& x,
                                 const CodeBlocks& own, const BlockScales& scales, int first) {
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    float* const to = totals + (first + v) * kLanes;
    const auto add = [&](const auto& with_sum) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Vec sum = __builtin_convertvector(sums[i][v], Vec);
        store(to + i * kPanelCols, with_sum(i, sum, load(to + i * kPanelCols)));
      }
    };
    // A word's scale is a power of two, so its product with one of weights is exact; that of bytes is
    // rounded.
    const auto scaled_by = [&](Vec scale) __attribute__((always_inline)) {
      add([&](int i, Vec sum, Vec total)
              __attribute__((always_inline)) { return fma(sum, scale * broadcast(x.scales[i]), total); });
    };
    const int64_t col = (first + v) * kLanes;
    if constexpr (Codes::kScaleBytes > 0) {
      scaled_by(Codes::scale(own.codes - Codes::kScaleBytes, first + v));
    } else if (scales.scales == nullptr) {
      add([&](int i, Vec sum, Vec total)
              __attribute__((always_inline)) { return fma(sum, broadcast(x.scales[i]), total); });
    } else if (scales.offsets == nullptr) {
      scaled_by(load(scales.scales + col));
    } else {
      const Vec scale = load(scales.scales + col), offset = load(scales.offsets + col);
      add([&](int i, Vec sum, Vec total) __attribute__((always_inline)) {
        return fma(broadcast(x.sums[i]), offset, fma(sum, scale * broadcast(x.scales[i]), total));
      });
    }
  }
}

// totals [kRows, 32] += the products of `quads` quads, of few rows: codes are read once, from memory.
template <typename Codes, typename Dot, int kRows>
[[gnu::noinline]] void add_words(float* totals, WordRows<Dot> x, CodeBlocks own, int64_t quads) {
  constexpr int kPairs = kRows == 1 ? kVecPairs : 1, kVecs = kPairs * kPairVecs;
  constexpr int kTurn = Codes::kBlockQuads;
  constexpr Fetched kFetched = Codes::kFetched;
  alignas(64) float buffers[2][kPanelCols];
  for (int64_t left = quads, block = 0; left > 0; left -= own.quads, ++block) {
    const BlockScales scales = scales_of(own, block, buffers);
    const int64_t count = left < own.quads ? left : own.quads;
    if constexpr (Codes::kScaleBytes > 0) {
      fetch<kFetched.of(1)>(own.ahead, 0);
      own.ahead += Codes::kScaleBytes;
    }
    for (int pair = 0; pair < kVecPairs; pair += kPairs) {
      IntVec sums[Dot::kPhases][kRows][kVecs] = {};
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) sums[0][i][v] = broadcast_four(x.first + i);
      }
      for (int64_t quad = 0; quad < count; quad += kTurn) {
        if (kVecPairs == kPairs || pair == 0) fetch<kFetched>(own.ahead, quad / kTurn);
        add_turn<Codes, Dot, kPairs>(sums, own.codes, quad, pair, x);
      }
      if constexpr (Dot::kPhases == 2) {
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const IntVec rest = broadcast_four(x.rest + i);
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) sums[0][i][v] = Dot::joined(sums[0][i][v], rest) + sums[1][i][v];
        }
      }
      add_block<Codes>(totals, sums[0], x, own, scales, pair * kPairVecs);
    }
    x.to_next_block();
    own.codes += own.bytes;
    own.ahead += own.quads / kTurn * kFetched.lines * kFetchedLineBytes;
  }
}

// The same of more rows, and codes that were decoded into the L1 cache: one phase after the other, so that
// there are half as many sums, and the second phase goes on with those of the first.
template <typename Dot, int kRows>
[[gnu::noinline]] void add_decoded_words(float* totals, WordRows<Dot> x, CodeBlocks own, int64_t quads,
                                         int64_t lines) {
  FetchedEvenly<Dot::kPhases> ahead{own.ahead, lines, 0, 0};
  alignas(64) float buffers[2][kPanelCols];
  for (int64_t left = quads, block = 0; left > 0; left -= own.quads, ++block) {
    const BlockScales scales = scales_of(own, block, buffers);
    const int64_t count = left < own.quads ? left : own.quads;
    for (int pair = 0; pair < kVecPairs; ++pair) {
      IntVec sums[kRows][kPairVecs];
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = broadcast_four(x.first + i);
      add_decoded_phase<Dot, 0>(sums, own.codes, count, pair, x, &ahead);
      if constexpr (Dot::kPhases == 2) {
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const IntVec rest = broadcast_four(x.rest + i);
          sums[i][0] = Dot::joined(sums[i][0], rest);
          sums[i][1] = Dot::joined(sums[i][1], rest);
        }
        add_decoded_phase<Dot, 1>(sums, own.codes, count, pair, x, &ahead);
      }
      // Totals wait in memory: the registers are for the sums of a block.
      asm volatile("" : : : "memory");
      add_block<DecodedQuads>(totals, sums, x, own, scales, pair * kPairVecs);
    }
    x.to_next_block();
    own.codes += own.bytes;
  }
}

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
template <typename Format>
class WordPanel {
 public:
  static constexpr int64_t kMostRows = 256;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    const int64_t rows = row_end - row;
    std::memset(totals, 0, static_cast<size_t>(rows * kPanelCols) * sizeof(float));
    const int64_t stored = rows > kStoredRows ? 0 : stored_blocks(p);
    if (stored > 0) add_stored(p, row, rows, panels, stored);
    for (int64_t block = stored; block < p.words.blocks; block += kStretchInputs / p.words.depth)
      add_decoded(p, row, rows, panels, block);
    write_panel(p, row, rows, panels.current * kPanelCols, totals);
  }

 private:
  using Dot = typename Format::Dot;
  // Of a stretch.
  static constexpr int64_t kCodeBytes = panel_bytes(Format::kFormat, kStretchInputs),
                           kMostBlocks = kStretchInputs / kSmallestGroup;
  static constexpr int64_t kTurnDepth = Format::kBlockQuads * kQuadDepth;

  // Quads are multiplied in twos or fours.
  static int64_t quads_of(int64_t depth) { return ceil_div(depth, kTurnDepth) * Format::kBlockQuads; }

  // Blocks that are multiplied as they lie in memory: those before one that ends within two quads, behind
  // which there are no codes.
  static int64_t stored_blocks(const LinearParams& p) {
    return Format::kHasNibbles || p.depth % kBlockDepth == 0 ? p.words.blocks : p.depth / p.words.depth;
  }

  void add_stored(const LinearParams& p, int64_t row, int64_t rows, const Panels& panels, int64_t blocks) {
    const int64_t whole = blocks * p.words.depth, quads = quads_of(whole < p.depth ? whole : p.depth);
    CodeBlocks own = blocks_of(p, panels.current, 0);
    own.ahead = own.codes - Format::kScaleBytes + kStreamAheadBytes;
    const WordRows<Dot> x(p.words, row, 0);
    with_rows<kStoredRows>(
        rows, [&](auto count) { add_words<StoredQuads<Format>, Dot, count>(totals, x, own, quads); });
  }

  // A stretch of inputs, by any number of passes.
  void add_decoded(const LinearParams& p, int64_t row, int64_t rows, const Panels& panels, int64_t block) {
    const int64_t left = p.depth - block * p.words.depth,
                  depth = left < kStretchInputs ? left : kStretchInputs;
    const CodeBlocks own = decoded(p, panels, block, depth);
    const int64_t passes = ceil_div(rows, kWordRows), lines = kCodeBytes / kFetchedLineBytes;
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
      float* const to = totals + begin * kPanelCols;
      const WordRows<Dot> x(p.words, row + begin, block);
      with_rows<kWordRows>(end - begin, [&](auto count) {
        add_decoded_words<Dot, count>(to, x, own, quads_of(depth), pass == 0 ? lines : 0);
      });
    }
  }

  // Bytes of `depth` inputs of a panel: a whole number of pairs, and of blocks of codes of 4 or 6 bits.
  static int64_t bytes_of(int64_t depth) {
    if constexpr (Format::kHasNibbles && has_group_scales(Format::kFormat))
      return depth / kTurnDepth * Format::kBlockBytes;
    return panel_bytes(Format::kFormat, depth);
  }

  static CodeBlocks blocks_of(const LinearParams& p, int64_t panel, int64_t block) {
    const int64_t depth = p.words.depth;
    CodeBlocks own{};
    own.bytes = bytes_of(depth);
    own.codes = panel_of<Format>(p, panel) + block * own.bytes + Format::kScaleBytes;
    own.quads = depth / kQuadDepth;
    if constexpr (has_group_scales(Format::kFormat)) {
      own.groups = &p.groups;
      own.group_scales = p.groups.of_panel(panel);
      own.block = block;
    }
    return own;
  }

  // Those of a stretch as operands; while these are multiplied the next one is fetched.
  CodeBlocks decoded(const LinearParams& p, const Panels& panels, int64_t block, int64_t depth) {
    CodeBlocks own = blocks_of(p, panels.current, block);
    char* to = operands;
    const char* codes = own.codes;
    own.ahead = block * p.words.depth + kStretchInputs < p.depth ? codes + kCodeBytes
                                                                 : panel_of<Format>(p, panels.next);
    int64_t count = 0;
    for (int64_t left = depth; left > 0; left -= p.words.depth, codes += own.bytes, ++count) {
      const int64_t inputs = left < p.words.depth ? left : p.words.depth;
      for (int64_t k = 0; k < inputs; k += kTurnDepth) {
        const char* const turn = codes + k / kTurnDepth * Format::kBlockBytes;
        decode_turn(turn, inputs - k, to);
        to += Format::kBlockQuads * kOperandBytes<Dot>;
      }
      if constexpr (Format::kScaleBytes > 0) {
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVecs; ++v)
          store(scales[count][0] + v * kLanes, Format::scale(codes - Format::kScaleBytes, v));
      } else if (p.groups.are_bytes) {
        for (int64_t kind = 0; kind < p.groups.kinds(); ++kind)
          scales_of_group(p.groups, own.group_scales, block + count, kind, scales[count][kind]);
      }
    }
    own.codes = operands;
    own.bytes = own.quads * kOperandBytes<Dot>;
    if (Format::kScaleBytes > 0 || (own.groups != nullptr && own.groups->are_bytes)) own.scales = scales;
    return own;
  }

  // Two or four quads, of which `inputs` are there.
  static void decode_turn(const char* codes, int64_t inputs, char* to) {
    constexpr int kQuads = Format::kBlockQuads;
    alignas(64) char own[Format::kBlockBytes];
    if (!Format::kHasNibbles && inputs < kTurnDepth) {
      std::memset(own, 0, sizeof own);
      std::memcpy(own, codes, static_cast<size_t>(bytes_of(inputs)));
      codes = own;
    }
    for (int pair = 0; pair < kVecPairs; ++pair) {
      UintVec quads[kQuads][kPairVecs];
      Format::template load<0>(codes, 0, pair, quads[0]);
      Format::template load<1>(codes, 1, pair, quads[1]);
      if constexpr (kQuads == 4) {
        Format::template load<2>(codes, 2, pair, quads[2]);
        Format::template load<3>(codes, 3, pair, quads[3]);
      }
      for (int quad = 0; quad < kQuads; ++quad) {
#pragma GCC unroll 2
        for (int v = 0; v < kPairVecs; ++v)
          store_operands<Dot>(to + quad * kOperandBytes<Dot>, pair * kPairVecs + v, quads[quad][v]);
      }
    }
  }

  alignas(64) float totals[kMostRows * kPanelCols];
  alignas(64) char operands[kStretchInputs / kQuadDepth * kOperandBytes<Dot>];
  alignas(64) float scales[kMostBlocks][2][kPanelCols];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
