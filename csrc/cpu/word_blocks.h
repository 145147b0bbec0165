// Blocks of rows of words: which kind of panels they meet.
#pragma once

#include "cpu/linear_rows.h"
#include "cpu/unit_panel.h"
#include "cpu/word_panel.h"

#if defined(SPLITSERVE_MULTIPLIES_WORDS)

namespace splitserve::SPLITSERVE_ISA {
namespace {

template <typename Format>
  requires requires { Format::kHasUnits; }
struct BlockRows<Format> {
  using Panel = std::conditional_t<Format::kHasUnits, UnitPanel<Format>, WordPanel<Format>>;
  // So many share what is decoded, and the words of more stay in the L2 cache while panels pass them.
  static constexpr int64_t kLeastRows = 48, kMostRows = Panel::kMostRows, kBytes = 640 * 1024;

  void multiply(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    panel.multiply(p, row, row_end, panels);
  }

 private:
  Panel panel;
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA

#endif
