// What the tasks of a linear layer do with a block of rows: a panel of outputs, or gates and what they gate.
#pragma once

#include "cpu/gates.h"
#include "cpu/linear_blocks.h"
#include "cpu/linear_rows.h"
#include "cpu/linear_tiles.h"
#include "cpu/word_blocks.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Products that are the outputs. Belongs to a thread and its part of the tasks.
template <typename Format>
class PlainProducts {
 public:
  using Params = ExpertLinearParams;
  static constexpr int64_t kMostRows = BlockRows<Format>::kMostRows;

  explicit PlainProducts(const Params&) {}

  static const ExpertLinearParams& products(const Params& p) { return p; }
  // Tasks of a block of rows.
  static int64_t tasks(const LinearParams& p) { return ceil_div(p.cols, kPanelCols); }

  void run(const LinearParams& p, int64_t row, int64_t row_end, const Panels& panels) {
    rows.multiply(p, row, row_end, panels);
  }

 private:
  BlockRows<Format> rows;
};

// Products of which half are gates of the others: those of a task wait in the cache, rounded as if they were
// outputs, for their activation.
template <typename Format>
class GatedProducts {
 public:
  using Params = GatedLinearParams;
  using X = typename Format::X;
  static constexpr int64_t kMostRows =
      BlockRows<Format>::kMostRows < 640 ? BlockRows<Format>::kMostRows : 640;

  explicit GatedProducts(const Params& params) : p(params), outputs(params.products.linear) {
    outputs.out = p.out;
    outputs.out_stride = p.out_stride;
    outputs.cols /= 2;
  }

  static const ExpertLinearParams& products(const Params& p) { return p.products; }
  static int64_t tasks(const LinearParams& p) { return p.cols / 2 / kPanelCols; }

  void run(const LinearParams& products, int64_t row, int64_t row_end, const Panels& panels) {
    const int64_t gates_panel = panels.current, others_panel = gates_panel + tasks(products);
    multiply(products, row, row_end, {gates_panel, others_panel}, gates);
    multiply(products, row, row_end, {others_panel, panels.next}, others);
    switch (p.kind) {
      case Activation::kGeluAndMul:
        return write<GeluAndMul<X>>(row, row_end, gates_panel * kPanelCols);
      case Activation::kGeluTanhAndMul:
        return write<GeluTanhAndMul>(row, row_end, gates_panel * kPanelCols);
      default:
        return write<SiluAndMul>(row, row_end, gates_panel * kPanelCols);
    }
  }

 private:
  void multiply(LinearParams products, int64_t row, int64_t row_end, const Panels& panels, X* to) {
    products.out = to;
    products.out_stride = kPanelCols;
    products.first_row = row;
    products.first_col = panels.current * kPanelCols;
    products.is_part = true;
    rows.multiply(products, row, row_end, panels);
  }

  template <typename Gate>
  [[gnu::noinline]] void write(int64_t row, int64_t row_end, int64_t col) const {
    PanelWriter<X> writer(outputs, row, col);
    for (int64_t i = 0; i < (row_end - row) * kPanelCols; i += kPanelCols) {
      Vec gated[kPanelVecs];
#pragma GCC unroll 8
      for (int64_t v = 0; v < kPanelVecs; ++v) {
        const int64_t at = i + v * kLanes;
        gated[v] = Gate::apply(load(gates + at), load(others + at), 1.0f);
      }
      writer.put(gated);
    }
  }

  const Params& p;
  LinearParams outputs;
  BlockRows<Format> rows;
  alignas(64) X gates[kMostRows * kPanelCols], others[kMostRows * kPanelCols];
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
