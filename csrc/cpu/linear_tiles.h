// Blocks of rows against panels of a linear layer, by the tiles of AMX.
#pragma once

#include <type_traits>

#include "cpu/amx_panel.h"
#include "cpu/linear_rows.h"

#if defined(__AMX_BF16__)

namespace splitserve::SPLITSERVE_ISA {
namespace {

// The rows of a block and their sums fit half of the L2 cache.
inline constexpr int64_t kTileBlockBytes = 640 * 1024, kTileBlockRows = 640;
// So many passes fetch the next panel between them; more are over before it is needed.
inline constexpr int64_t kFetchingPasses = 8;

// What pass `pass` of `passes` over a panel fetches. A single pass runs ahead in the stream of weights;
// several, which find the panel in a cache, fetch the next one as evenly as they can.
template <typename Format>
StepAhead step_ahead(const LinearParams& p, const Panels& panels, int64_t pass, int64_t passes) {
  constexpr int64_t kStepBytes = panel_bytes(Format::kFormat, TileInput<Format>::kDepth),
                    kLines = kStepBytes / Format::kUnitBytes * kAllLines<Format>;
  if (passes == 1) return {panel_of<Format>(p, panels.current) + kStreamAheadBytes, kLines, true};
  const int64_t fetching = passes < kFetchingPasses ? passes : kFetchingPasses;
  if (pass >= fetching) return {nullptr, 0, false};
  const int64_t first = kLines * pass / fetching, end = kLines * (pass + 1) / fetching;
  const int64_t steps = panel_bytes(Format::kFormat, p.depth) / kStepBytes;
  return {panel_of<Format>(p, panels.next) + first * steps * 64, end - first, false};
}

template <typename Format>
  requires std::is_same_v<typename Format::X, BFloat16>
struct BlockRows<Format> {
  static constexpr bool kIsDot = Format::kFormat == WeightFormat::kInt8Dot;
  static constexpr int64_t kLeastRows = 4 * kTileSize, kMostRows = kTileBlockRows, kBytes = kTileBlockBytes;
  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    const auto x = rows_of(p, row, row_end);
    tiles.multiply(
        x, panel_of<Format>(p, panels.current), {p.groups, panels.current, row},
        [&](int64_t pass, int64_t passes) { return step_ahead<Format>(p, panels, pass, passes); },
        [&](int64_t first, int64_t rows, const float* sums) {
          if constexpr (kIsDot) {
            write_dots(p, row + first, rows, panels.current * kPanelCols, sums);
          } else {
            write_panel(p, row + first, rows, panels.current * kPanelCols, sums);
          }
        });
  }

 private:
  using Element = typename TileInput<Format>::Element;

  static TileRows<Element> rows_of(const LinearParams& p, int64_t row, int64_t row_end) {
    if constexpr (kIsDot) {
      const int64_t depth = ceil_div(p.depth, kDotDepth) * kDotDepth;
      return {static_cast<const int8_t*>(p.codes.codes) + row * depth, depth, row_end - row, depth};
    } else {
      return {static_cast<const BFloat16*>(p.x) + row * p.x_stride, p.x_stride, row_end - row, p.depth};
    }
  }

  // Sums are integers, of up to two tiles of rows.
  static void write_dots(const LinearParams& p, int64_t row, int64_t rows, int64_t col, const float* sums) {
    if (col + kPanelCols <= p.cols) {
      if (p.out_dtype == DType::kFloat32) return write_dot_rows<float>(p, row, rows, col, sums);
      return write_dot_rows<BFloat16>(p, row, rows, col, sums);
    }
    alignas(64) float scaled[2 * kTileSize * kPanelCols];
    for (int64_t i = 0; i < rows * kPanelVecs; ++i)
      store(scaled + i * kLanes, scaled_dot(p.codes, row + i / kPanelVecs, load_sums(sums + i * kLanes)));
    write_columns<BFloat16>(p, row, rows, col, scaled);
  }

  TilePanel<Format, kTileBlockRows> tiles;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
