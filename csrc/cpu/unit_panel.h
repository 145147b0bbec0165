// Blocks of rows against panels of a linear layer whose weights are codes with scales in units
// (GroupScales::are_bytes): rows are words, and so are codes times the integers of their groups' scales.
//
// The products of a block of inputs have one sum, which is exact, whether codes are multiplied with scales
// first, or the sums of groups afterwards. It becomes a float, is scaled and added to those of the blocks
// before; then come the offsets of its groups. So the bits of an output depend on its row and column alone.
#pragma once

#include "cpu/linear_decoded.h"
#include "cpu/word_rows.h"

#if defined(SPLITSERVE_MULTIPLIES_WORDS)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Of a stretch.
inline constexpr int64_t kMostGroups = kStretchInputs / kSmallestGroup;

// Scales of a block of a panel, or of a stretch of blocks, which are in one unit.
struct UnitScales {
  const float* unit;                   // [32], what its groups' integers are multiplied with
  const int8_t* groups;                // [groups][32]
  const float (*offsets)[kPanelCols];  // [groups], of which there are `num_offsets`
  int64_t num_offsets;

  // With the offsets of its first groups alone.
  UnitScales first(int64_t count) const {
    UnitScales own = *this;
    if (own.num_offsets > count) own.num_offsets = count;
    return own;
  }
  // Leaves those out.
  void skip(int64_t count) { offsets += count, num_offsets -= count; }
};

// buffer: where offsets become floats.
inline UnitScales scales_of_inputs(const GroupScales& groups, const char* panel, int64_t input,
                                   int64_t inputs, float (&buffer)[kMostGroups][kPanelCols]) {
  const int64_t group = groups.of_input(input), count = ceil_div(inputs, groups.depth);
  const char* const unit = groups.unit(panel, group, 0);
  if (groups.has_offsets) {
    for (int64_t i = 0; i < count; ++i) scales_of_group(groups, panel, group + i, 1, buffer[i]);
  }
  return {reinterpret_cast<const float*>(unit), groups.bytes(unit, group), buffer,
          groups.has_offsets ? count : 0};
}

// totals [kRows, 32] += what the sums of a block are worth, of kVecs registers from `first` on, and its first
// kOffsets offsets.
template <int kOffsets, typename Dot, int kRows, int kVecs>
SPLITSERVE_INLINE void add_sums(float* totals, const IntVec (&sums)[kRows][kVecs], const WordRows<Dot>& x,
                                const UnitScales& scales, int first) {
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    const int64_t col = (first + v) * kLanes;
    const Vec unit = load(scales.unit + col);
    Vec offsets[kOffsets > 0 ? kOffsets : 1];
#pragma GCC unroll 8
    for (int g = 0; g < kOffsets; ++g) offsets[g] = load(scales.offsets[g] + col);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      float* const to = totals + i * kPanelCols + col;
      Vec total = fma(__builtin_convertvector(sums[i][v], Vec), unit * broadcast(x.scales[i]), load(to));
#pragma GCC unroll 8
      for (int g = 0; g < kOffsets; ++g) total = fma(broadcast(x.sums[g * x.stride + i]), offsets[g], total);
      store(to, total);
    }
  }
}

// The same with all of its offsets.
template <typename Dot, int kRows, int kVecs>
SPLITSERVE_INLINE void add_block_sums(float* totals, const IntVec (&sums)[kRows][kVecs],
                                      const WordRows<Dot>& x, const UnitScales& scales, int first) {
  constexpr int kMany = 4;
  if (scales.num_offsets < kMany) {
    add_sums<0>(totals, sums, x, scales, first);
  } else {
    add_sums<kMany>(totals, sums, x, scales, first);
  }
  for (int64_t g = scales.num_offsets < kMany ? 0 : kMany; g < scales.num_offsets; ++g) {
    for (int v = 0; v < kVecs; ++v) {
      const int64_t col = (first + v) * kLanes;
      const Vec offset = load(scales.offsets[g] + col);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        float* const to = totals + i * kPanelCols + col;
        store(to, fma(broadcast(x.sums[g * x.stride + i]), offset, load(to)));
      }
    }
  }
}

// totals [kRows, 32] += the products of few rows with a panel: codes are read once, from memory, and sums of
// groups are multiplied with their scales.
template <typename Format, int kRows>
[[gnu::noinline]] void add_stored_units(float* totals, const LinearParams& p, int64_t row, int64_t panel) {
  using Codes = StoredQuads<Format>;
  using Dot = typename Format::Dot;
  constexpr int kPairs = kRows == 1 ? kVecPairs : 1, kVecs = kPairs * kPairVecs, kTurn = Format::kBlockQuads;
  constexpr int64_t kTurnDepth = kTurn * kQuadDepth;
  WordRows<Dot> x(p.words, row, 0);
  const char* codes = panel_of<Format>(p, panel);
  const char *ahead = codes + kStreamAheadBytes, *const group_scales = p.groups.of_panel(panel);
  const int64_t group_quads = p.groups.depth / kQuadDepth;
  alignas(64) float buffer[kMostGroups][kPanelCols];
  const int64_t depth = p.words.depth, turns = depth / kTurnDepth;
  for (int64_t input = 0; input < p.depth; input += depth, x.to_next_block()) {
    const int64_t left = p.depth - input, inputs = left < depth ? left : depth,
                  quads = ceil_div(inputs, kTurnDepth) * kTurn;
    const UnitScales scales = scales_of_inputs(p.groups, group_scales, input, inputs, buffer);
    for (int pair = 0; pair < kVecPairs; pair += kPairs) {
      IntVec totals_of_groups[kRows][kVecs] = {};
      const int32_t* first = x.first;
      const int8_t* group_scale = scales.groups + pair * kPairVecs * kLanes;
      for (int64_t quad = 0; quad < quads; first += x.stride, group_scale += kPanelCols) {
        IntVec sums[1][kRows][kVecs];
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) sums[0][i][v] = broadcast_four(first + i);
        }
        const int64_t end = quad + group_quads < quads ? quad + group_quads : quads;
        for (; quad < end; quad += kTurn) {
          if (kVecPairs == kPairs || pair == 0) fetch<Codes::kFetched>(ahead, quad / kTurn);
          add_turn<Codes, Dot, kPairs>(sums, codes, quad, pair, x);
        }
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          const IntVec scale = load_wide(group_scale + v * kLanes);
#pragma GCC unroll 8
          for (int i = 0; i < kRows; ++i) totals_of_groups[i][v] += sums[0][i][v] * scale;
        }
      }
      add_block_sums(totals, totals_of_groups, x, scales, pair * kPairVecs);
    }
    codes += turns * Format::kBlockBytes;
    ahead += turns * Codes::kFetched.lines * kFetchedLineBytes;
  }
}

// A stretch of codes that were multiplied with their scales.
struct ScaledCodes {
  const char* halves;  // [quads][2][32 outputs][2 inputs]
  int64_t quads;
  UnitScales scales;
  const char* ahead;  // what is fetched meanwhile begins there
};

// totals [kRows, 32] += their products with rows; `lines` are fetched.
template <typename Dot, int kRows>
[[gnu::noinline]] void add_scaled_units(float* totals, WordRows<Dot> x, ScaledCodes own, int64_t lines) {
  FetchedEvenly<1> fetched{own.ahead, lines, 0, 0};
  const int64_t block_quads = x.depth / kQuadDepth, parts = x.part_stride / x.stride;
  for (int64_t left = own.quads; left > 0; left -= block_quads) {
    const int64_t quads = left < block_quads ? left : block_quads;
    const UnitScales scales = own.scales.first(parts);
    for (int pair = 0; pair < kVecPairs; ++pair) {
      IntVec sums[kRows][kPairVecs];
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = IntVec{};
      add_decoded_phase<Dot, 0>(sums, own.halves, quads, pair, x, &fetched);
      // Totals wait in memory: the registers are for the sums of a block.
      asm volatile("" : : : "memory");
      add_block_sums(totals, sums, x, scales, pair * kPairVecs);
    }
    x.to_next_block();
    own.halves += quads * kOperandBytes<Dot>;
    own.scales.skip(parts);
  }
}

// Multiplies blocks of rows with panels; belongs to a thread and its part of the tasks.
template <typename Format>
class UnitPanel {
 public:
  static constexpr int64_t kMostRows = 256;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    const int64_t rows = row_end - row;
    std::memset(totals, 0, static_cast<size_t>(rows * kPanelCols) * sizeof(float));
    if (rows <= kFewRows) {
      with_rows<kFewRows>(
          rows, [&](auto count) { add_stored_units<Format, count>(totals, p, row, panels.current); });
    } else {
      for (int64_t input = 0; input < p.depth; input += kStretchInputs)
        add_stretch(p, row, rows, panels, input);
    }
    write_panel(p, row, rows, panels.current * kPanelCols, totals);
  }

 private:
  using Dot = typename Format::Dot;
  typedef int16_t Halves __attribute__((vector_size(kLanes * 4)));
  static constexpr int64_t kTurnDepth = Format::kBlockQuads * kQuadDepth,
                           kStretchCodes = kStretchInputs / kTurnDepth * Format::kBlockBytes;
  // As many read codes as they lie in memory sooner than once more from a cache. Products that need a
  // register before they are added leave 16 registers fewer sums.
  static constexpr int64_t kFewRows = kVecRegisters == 32 || Dot::kIsFused ? 8 : kStoredRows;

  // By any number of passes, of which the first fetches what comes next.
  void add_stretch(const LinearParams& p, int64_t row, int64_t rows, const Panels& panels, int64_t input) {
    const int64_t left = p.depth - input, inputs = left < kStretchInputs ? left : kStretchInputs;
    const char* const codes = panel_of<Format>(p, panels.current) + input / kStretchInputs * kStretchCodes;
    const ScaledCodes own{
        halves, ceil_div(inputs, kTurnDepth) * Format::kBlockQuads,
        scales_of_inputs(p.groups, p.groups.of_panel(panels.current), input, inputs, offsets),
        left > kStretchInputs ? codes + kStretchCodes : panel_of<Format>(p, panels.next)};
    if (Format::zero(p) == 0) {
      scale_codes<false>(codes, own.scales.groups, p.groups.depth, inputs, 0);
    } else {
      scale_codes<true>(codes, own.scales.groups, p.groups.depth, inputs, Format::zero(p));
    }
    const int64_t passes = ceil_div(rows, kWordRows);
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t begin = rows * pass / passes, end = rows * (pass + 1) / passes;
      const WordRows<Dot> x(p.words, row + begin, input / p.words.depth);
      with_rows<kWordRows>(end - begin, [&](auto count) {
        add_scaled_units<Dot, count>(totals + begin * kPanelCols, x, own,
                                     pass == 0 ? kStretchCodes / kFetchedLineBytes : 0);
      });
    }
  }

  // halves = (codes - zero) * scales
  template <bool kHasZero>
  void scale_codes(const char* codes, const int8_t* scales, int64_t group_depth, int64_t inputs,
                   int32_t zero) {
    const Halves zeros = Halves{} + static_cast<int16_t>(zero);
    char* to = halves;
    for (int64_t k = 0; k < inputs; k += group_depth, scales += kPanelCols) {
      Halves of_group[kPanelVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVecs; ++v) {
        const UintVec scale = reinterpret_cast<UintVec>(load_wide(scales + v * kLanes));
        of_group[v] = reinterpret_cast<Halves>((scale & 0xffffu) | (scale << 16));
      }
      const int64_t end = k + group_depth < inputs ? k + group_depth : inputs;
      for (int64_t turn = k; turn < end; turn += kTurnDepth, codes += Format::kBlockBytes) {
        scale_quad<kHasZero, 0>(codes, of_group, zeros, &to);
        scale_quad<kHasZero, 1>(codes, of_group, zeros, &to);
        if constexpr (Format::kBlockQuads == 4) {
          scale_quad<kHasZero, 2>(codes, of_group, zeros, &to);
          scale_quad<kHasZero, 3>(codes, of_group, zeros, &to);
        }
      }
    }
  }

  // The next quad, which `codes` has at a place.
  template <bool kHasZero, int kPlace>
  SPLITSERVE_INLINE static void scale_quad(const char* codes, const Halves (&scales)[kPanelVecs],
                                           const Halves& zeros, char** to) {
#pragma GCC unroll 2
    for (int pair = 0; pair < kVecPairs; ++pair) {
      UintVec bytes[kPairVecs];
      Format::template load<kPlace>(codes, kPlace, pair, bytes);
#pragma GCC unroll 2
      for (int i = 0; i < kPairVecs; ++i) {
        const int v = pair * kPairVecs + i;
        const typename Dot::Weights words = Dot::weights(bytes[i]);
        Halves even = reinterpret_cast<Halves>(words.even), odd = reinterpret_cast<Halves>(words.odd);
        if (kHasZero) even -= zeros, odd -= zeros;
        even *= scales[v], odd *= scales[v];
        std::memcpy(*to + v * static_cast<int64_t>(sizeof(Vec)), &even, sizeof even);
        std::memcpy(*to + (kPanelVecs + v) * static_cast<int64_t>(sizeof(Vec)), &odd, sizeof odd);
      }
    }
    *to += 2 * kPanelVecs * sizeof(Vec);
  }

  alignas(64) float totals[kMostRows * kPanelCols];
  alignas(64) char halves[kStretchInputs * kPanelCols * sizeof(int16_t)];
  alignas(64) float offsets[kMostGroups][kPanelCols];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
