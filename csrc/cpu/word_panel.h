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
  const char* codes;    // of the first
  int64_t bytes;        // from those of a block to those of the next
  int64_t quads;        // of a block
  const float* scales;  // [blocks, stride]: of 32 outputs, then offsets; nullptr if they lie between the
                        // codes, or there are none
  int64_t stride;
  bool has_offsets;
  const char* ahead;  // what is fetched meanwhile begins there
};

// Bytes that were made of the codes before: [quads][32][4].
struct DecodedQuads {
  static constexpr int64_t kScaleBytes = 0;
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
template <typename Codes, typename Dot, int kParity, int kPairs, int kRows, int kVecs>
SPLITSERVE_INLINE void add_quad(typename Dot::Sums (&sums)[kRows][kVecs], const char* codes, int64_t quad,
                                int pair, const char* words, int64_t stride) {
  constexpr int64_t kBytes = kQuadDepth * kWordBytes;
#pragma GCC unroll 2
  for (int p = 0; p < kPairs; ++p) {
    UintVec bytes[kPairVecs];
    Codes::template load<kParity>(codes, quad, pair + p, bytes);
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
                                 const WordRows& x, const CodeBlocks& own, int first) {
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
    } else if (own.scales == nullptr) {
      add([&](int i, Vec sum, Vec total)
              __attribute__((always_inline)) { return fma(sum, row_scales[i], total); });
    } else if (!own.has_offsets) {
      scaled_by(load(own.scales + col));
    } else {
      const Vec scale = load(own.scales + col), offset = load(own.scales + col + kPanelCols);
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
  constexpr Fetched kFetched = Codes::kFetched;
  for (int64_t left = quads; left > 0; left -= own.quads) {
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
      for (int64_t quad = 0; quad < count; quad += 2) {
        if (kVecPairs == kPairs || pair == 0) fetch<kFetched>(own.ahead, quad / 2);
        add_quad<Codes, Dot, 0, kPairs>(sums, own.codes, quad, pair, x.words, x.stride);
        add_quad<Codes, Dot, 1, kPairs>(sums, own.codes, quad + 1, pair, x.words, x.stride);
      }
      add_block<Codes, Dot>(totals, sums, x, own, pair * kPairVecs);
    }
    x.to_next_block(own.quads * kQuadDepth * kWordBytes);
    own.codes += own.bytes;
    own.ahead += own.quads / 2 * kFetched.lines * kFetchedLineBytes;
    if (own.scales != nullptr) own.scales += own.stride;
  }
}

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
template <typename Format>
class WordPanel {
 public:
  // More rows than kStoredRows multiply what is decoded once: int8, which is put from pairs into fours, costs
  // them a tenth more if each pass does so for itself.
  static constexpr int64_t kStoredRows = 48, kMostRows = 256;

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

  // Quads are multiplied in twos.
  static int64_t quads_of(int64_t depth) { return ceil_div(depth, kBlockDepth) * 2; }

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

  // Bytes of `depth` inputs of a panel: a whole number of pairs, and of blocks of codes of 4 bits.
  static int64_t bytes_of(int64_t depth) {
    if constexpr (Format::kFormat == WeightFormat::kInt4Groups) return depth / kBlockDepth * kBlockBytes;
    return panel_bytes(Format::kFormat, depth);
  }

  static CodeBlocks blocks_of(const LinearParams& p, int64_t panel, int64_t block) {
    const int64_t depth = p.words.depth;
    CodeBlocks own{};
    own.bytes = bytes_of(depth);
    own.codes = panel_of<Format>(p, panel) + block * own.bytes + Format::kScaleBytes;
    own.quads = depth / kQuadDepth;
    if constexpr (has_group_scales(Format::kFormat)) {
      own.stride = p.groups.stride();
      own.scales = p.groups.of_panel(panel) + block * own.stride;
      own.has_offsets = p.groups.has_offsets;
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
      for (int64_t k = 0; k < inputs; k += kBlockDepth, to += 2 * kQuadBytes, ahead += Format::kBlockBytes) {
        for (int64_t line = 0; line < Format::kBlockBytes; line += kFetchedLineBytes)
          __builtin_prefetch(ahead + line);
        decode_two(codes, k / kBlockDepth, inputs - k, to);
      }
      if constexpr (Format::kScaleBytes > 0) {
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVecs; ++v)
          store(scales[count] + v * kLanes, Format::scale(codes - Format::kScaleBytes, v));
      }
    }
    own.codes = bytes;
    own.bytes = own.quads * kQuadBytes;
    if constexpr (Format::kScaleBytes > 0) {
      own.scales = scales[0];
      own.stride = kPanelCols;
    }
    return own;
  }

  // Two quads, of which `inputs` are there.
  static void decode_two(const char* codes, int64_t two, int64_t inputs, char* to) {
    alignas(64) char own[Format::kBlockBytes];
    if (!Format::kHasNibbles && inputs < kBlockDepth) {
      std::memset(own, 0, sizeof own);
      std::memcpy(own, codes + two * Format::kBlockBytes, static_cast<size_t>(bytes_of(inputs)));
      codes = own, two = 0;
    }
    for (int pair = 0; pair < kVecPairs; ++pair) {
      UintVec quads[2][kPairVecs];
      Format::template load<0>(codes, 2 * two, pair, quads[0]);
      Format::template load<1>(codes, 2 * two + 1, pair, quads[1]);
      for (int quad = 0; quad < 2; ++quad)
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
  alignas(64) float scales[kMostBlocks][kPanelCols];
};

template <typename Format>
  requires requires { typename Format::Dot::Sums; }
struct BlockRows<Format> {
  static constexpr int64_t kLeastRows = WordPanel<Format>::kStoredRows,
                           kMostRows = WordPanel<Format>::kMostRows, kBytes = kRowBlockBytes;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    panel.multiply(p, row, row_end, panels);
  }

 private:
  WordPanel<Format> panel;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
