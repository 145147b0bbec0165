// Blocks of rows against panels of a linear layer whose weights are codes: rows are words, and products of
// integers, which are exact.
//
// The sum of a block of inputs becomes a float, is scaled and added to those of the blocks before. So the
// bits of an output depend on its row and column alone.
#pragma once

#include "cpu/linear_decoded.h"
#include "cpu/row_words.h"
#include "cpu/word_weights.h"

#if defined(SPLITSERVE_MULTIPLIES_WORDS)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Rows whose sums, of two registers of outputs, stay in registers.
inline constexpr int kWordRows = kVecRegisters == 32 ? 6 : 3;

// Where the words of some rows are, from a block on.
struct WordRows {
  const char* words;
  const float *scales, *sums;
  const int32_t* less;
  int64_t stride, blocks;

  WordRows(const RowWords& all, int64_t row, int64_t block)
      : words(all.words + row * all.stride + block * all.depth * kWordBytes),
        scales(all.scales + row * all.blocks + block),
        sums(all.sums + row * all.blocks + block),
        less(all.less + row * all.blocks + block),
        stride(all.stride),
        blocks(all.blocks) {}

  SPLITSERVE_INLINE void to_next_block(int64_t bytes) {
    words += bytes;
    ++scales, ++sums, ++less;
  }
};

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

// Bytes that were made of the codes before: [quads][32][4].
struct DecodedQuads {
  static constexpr int64_t kScaleBytes = 0;
  static constexpr int kBlockQuads = 2;
  static constexpr Fetched kFetched{0, false};
  template <int>
  SPLITSERVE_INLINE static void load(const char* codes, int64_t quad, int pair, UintVec (&bytes)[kPairVecs]) {
#pragma GCC unroll 2
    for (int v = 0; v < kPairVecs; ++v)
      bytes[v] =
          load_bytes(codes + quad * kQuadBytes + (pair * kPairVecs + v) * static_cast<int64_t>(sizeof(Vec)));
  }
};

// Codes as they lie in memory, and how much of other ones is fetched meanwhile.
template <typename Format, Share kShare>
struct StoredQuads : Format {
  static constexpr int kLines = static_cast<int>(Format::kBlockBytes / kFetchedLineBytes);
  static constexpr Fetched kFetched{kShare == Share::kAll    ? kLines
                                    : kShare == Share::kHalf ? kLines / 2
                                                             : 0,
                                    kShare == Share::kAll};
};

// sums[i][v] += the products of a quad, of kPairs pairs of registers from `pair` on.
template <typename Codes, typename Dot, int kPlace, int kPairs, int kRows, int kVecs>
SPLITSERVE_INLINE void add_quad(typename Dot::Sums (&sums)[kRows][kVecs], const char* codes, int64_t quad,
                                int pair, const char* words, int64_t stride) {
  constexpr int64_t kBytes = kQuadDepth * kWordBytes;
#pragma GCC unroll 2
  for (int p = 0; p < kPairs; ++p) {
    UintVec bytes[kPairVecs];
    Codes::template load<kPlace>(codes, quad, pair + p, bytes);
    const typename Dot::Weights weights[kPairVecs] = {Dot::weights(bytes[0]), Dot::weights(bytes[1])};
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const char* const own = words + i * stride + quad * kBytes;
      const IntVec first = broadcast_four(own), second = broadcast_four(own + kBytes / 2);
      Dot::accumulate(sums[i][p * kPairVecs], weights[0], first, second);
      Dot::accumulate(sums[i][p * kPairVecs + 1], weights[1], first, second);
    }
  }
}

// totals [kRows, 32] += what sums of a block are worth, of kVecs registers from `first` on.
template <typename Codes, typename Dot, int kRows, int kVecs>
SPLITSERVE_INLINE void add_block(float* totals, const typename Dot::Sums (&sums)[kRows][kVecs],
                                 const WordRows& x, const CodeBlocks& own, const BlockScales& scales,
                                 int first) {
  Vec row_scales[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) row_scales[i] = broadcast(x.scales[i * x.blocks]);
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    float* const to = totals + (first + v) * kLanes;
    const auto add = [&](const auto& with_sum) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Vec sum = __builtin_convertvector(Dot::total(sums[i][v]), Vec);
        store(to + i * kPanelCols, with_sum(i, sum, load(to + i * kPanelCols)));
      }
    };
    // A row's scale is a power of two, so its product with one of weights is exact.
    const auto scaled_by = [&](Vec scale) __attribute__((always_inline)) {
      add([&](int i, Vec sum, Vec total)
              __attribute__((always_inline)) { return fma(sum, scale * row_scales[i], total); });
    };
    const int64_t col = (first + v) * kLanes;
    if constexpr (Codes::kScaleBytes > 0) {
      scaled_by(Codes::scale(own.codes - Codes::kScaleBytes, first + v));
    } else if (scales.scales == nullptr) {
      add([&](int i, Vec sum, Vec total)
              __attribute__((always_inline)) { return fma(sum, row_scales[i], total); });
    } else if (scales.offsets == nullptr) {
      scaled_by(load(scales.scales + col));
    } else {
      const Vec scale = load(scales.scales + col), offset = load(scales.offsets + col);
      add([&](int i, Vec sum, Vec total) __attribute__((always_inline)) {
        return fma(broadcast(x.sums[i * x.blocks]), offset, fma(sum, scale * row_scales[i], total));
      });
    }
  }
}

// totals [kRows, 32] += the products of `quads` quads.
template <typename Codes, typename Dot, int kRows>
[[gnu::noinline]] void add_words(float* totals, WordRows x, CodeBlocks own, int64_t quads) {
  constexpr int kPairs = kRows == 1 ? kVecPairs : 1, kVecs = kPairs * kPairVecs;
  constexpr int kTurn = Codes::kBlockQuads;
  constexpr Fetched kFetched = Codes::kFetched;
  alignas(64) float buffers[2][kPanelCols];
  for (int64_t left = quads, block = 0; left > 0; left -= own.quads, ++block) {
    const BlockScales scales = scales_of(own, block, buffers);
    const int64_t count = left < own.quads ? left : own.quads;
    if constexpr (Codes::kScaleBytes > 0) {
      if constexpr (kFetched.lines > 0) fetch<kFetched.of(1)>(own.ahead, 0);
      own.ahead += Codes::kScaleBytes;
    }
    for (int pair = 0; pair < kVecPairs; pair += kPairs) {
      typename Dot::Sums sums[kRows][kVecs];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) sums[i][v] = Dot::first(broadcast_four(x.less + i * x.blocks));
      }
      for (int64_t quad = 0; quad < count; quad += kTurn) {
        if (kVecPairs == kPairs || pair == 0) fetch<kFetched>(own.ahead, quad / kTurn);
        add_quad<Codes, Dot, 0, kPairs>(sums, own.codes, quad, pair, x.words, x.stride);
        add_quad<Codes, Dot, 1, kPairs>(sums, own.codes, quad + 1, pair, x.words, x.stride);
        if constexpr (kTurn == 4) {
          add_quad<Codes, Dot, 2, kPairs>(sums, own.codes, quad + 2, pair, x.words, x.stride);
          add_quad<Codes, Dot, 3, kPairs>(sums, own.codes, quad + 3, pair, x.words, x.stride);
        }
      }
      add_block<Codes, Dot>(totals, sums, x, own, scales, pair * kPairVecs);
    }
    x.to_next_block(own.quads * kQuadDepth * kWordBytes);
    own.codes += own.bytes;
    own.ahead += own.quads / kTurn * kFetched.lines * kFetchedLineBytes;
  }
}

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
template <typename Format>
class WordPanel {
 public:
  // More rows than kStoredRows multiply what is decoded once: int8, which is put from pairs into fours, costs
  // them a tenth more if each pass does so for itself, and codes of 6 bits cost few rows more, where these
  // take many passes.
  static constexpr int64_t kStoredRows = Format::kBlockQuads == 4 && kVecRegisters == 16 ? kWordRows : 48,
                           kMostRows = 256;

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
  static constexpr int64_t kMostBlocks = kStretchInputs / kSmallestGroup;

  static constexpr int64_t kTurnDepth = Format::kBlockQuads * kQuadDepth;

  // Quads are multiplied in twos or fours.
  static int64_t quads_of(int64_t depth) { return ceil_div(depth, kTurnDepth) * Format::kBlockQuads; }

  // Blocks that are multiplied as they lie in memory: those before one that ends within two quads, behind
  // which there are no codes.
  static int64_t stored_blocks(const LinearParams& p) {
    return Format::kHasNibbles || p.depth % kBlockDepth == 0 ? p.words.blocks : p.depth / p.words.depth;
  }

  // A single pass runs ahead in the stream of weights; of several, which find the panel in a cache, the first
  // two fetch half of the next one each.
  void add_stored(const LinearParams& p, int64_t row, int64_t rows, const Panels& panels, int64_t blocks) {
    const int64_t whole = blocks * p.words.depth, quads = quads_of(whole < p.depth ? whole : p.depth);
    CodeBlocks own = blocks_of(p, panels.current, 0);
    const int64_t passes = ceil_div(rows, kWordRows);
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t begin = rows * pass / passes, count = rows * (pass + 1) / passes - begin;
      float* const to = totals + begin * kPanelCols;
      const WordRows x(p.words, row + begin, 0);
      if (passes == 1) {
        own.ahead = own.codes - Format::kScaleBytes + kStreamAheadBytes;
        add<StoredQuads<Format, Share::kAll>>(to, count, x, own, quads);
      } else if (pass < 2) {
        own.ahead = panel_of<Format>(p, panels.next) + pass * panel_bytes(Format::kFormat, p.depth) / 2;
        add<StoredQuads<Format, Share::kHalf>>(to, count, x, own, quads);
      } else {
        add<StoredQuads<Format, Share::kNone>>(to, count, x, own, quads);
      }
    }
  }

  // A stretch of inputs, by any number of passes.
  void add_decoded(const LinearParams& p, int64_t row, int64_t rows, const Panels& panels, int64_t block) {
    const int64_t left = p.depth - block * p.words.depth,
                  depth = left < kStretchInputs ? left : kStretchInputs;
    const CodeBlocks own = decoded(p, panels, block, depth);
    const int64_t passes = ceil_div(rows, kWordRows);
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
      add<DecodedQuads>(totals + begin * kPanelCols, end - begin, {p.words, row + begin, block}, own,
                        quads_of(depth));
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

  // Those of a stretch as bytes; meanwhile the next one is fetched.
  CodeBlocks decoded(const LinearParams& p, const Panels& panels, int64_t block, int64_t depth) {
    CodeBlocks own = blocks_of(p, panels.current, block);
    const int64_t first = block * p.words.depth;
    const char* ahead = first + kStretchInputs < p.depth
                            ? panel_of<Format>(p, panels.current) + bytes_of(first + kStretchInputs)
                            : panel_of<Format>(p, panels.next);
    char* to = bytes;
    const char* codes = own.codes;
    int64_t count = 0;
    for (int64_t left = depth; left > 0; left -= p.words.depth, codes += own.bytes, ++count) {
      const int64_t inputs = left < p.words.depth ? left : p.words.depth;
      for (int64_t k = 0; k < inputs; k += kTurnDepth, ahead += Format::kBlockBytes) {
        for (int64_t line = 0; line < Format::kBlockBytes; line += kFetchedLineBytes)
          __builtin_prefetch(ahead + line);
        decode_turn(codes + k / kTurnDepth * Format::kBlockBytes, inputs - k, to);
        to += Format::kBlockQuads * kQuadBytes;
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
    own.codes = bytes;
    own.bytes = own.quads * kQuadBytes;
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
      for (int quad = 0; quad < kQuads; ++quad)
        std::memcpy(to + quad * kQuadBytes + pair * static_cast<int64_t>(sizeof quads[0]), quads[quad],
                    sizeof quads[0]);
    }
  }

  template <typename Codes>
  static void add(float* to, int64_t rows, const WordRows& x, const CodeBlocks& own, int64_t quads) {
    with_rows<kWordRows>(rows, [&](auto count) { add_words<Codes, Dot, count>(to, x, own, quads); });
  }

  alignas(64) float totals[kMostRows * kPanelCols];
  alignas(64) char bytes[kStretchInputs * kPanelCols];
  alignas(64) float scales[kMostBlocks][2][kPanelCols];
};

template <typename Format>
  requires requires { typename Format::Dot::Sums; }
struct BlockRows<Format> {
  static constexpr int64_t kLeastRows = 48, kMostRows = WordPanel<Format>::kMostRows, kBytes = kRowBlockBytes;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    panel.multiply(p, row, row_end, panels);
  }

 private:
  WordPanel<Format> panel;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
