// Columns of a matrix in another order: inputs of a weight that keeps them by the groups of their scales.
#include "common/check.h"
#include "cpu/parallel.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

struct TakeColumnsParams {
  void* out;             // [rows, count]
  const void* x;         // [rows, width]
  const int32_t* order;  // [count], columns of x, or -1 for zeros
  int64_t rows, count, width;
  int64_t out_stride, x_stride;  // in elements
  DType dtype;
};

void check_order(const TakeColumnsParams& p) {
  int32_t least = -1, largest = -1;
  for (int64_t k = 0; k < p.count; ++k) {
    least = p.order[k] < least ? p.order[k] : least;
    largest = p.order[k] > largest ? p.order[k] : largest;
  }
  SPLITSERVE_CHECK_VALUE(least == -1 && largest < p.width,
                         "order: " << (least < -1 ? least : largest) << " is not a column of " << p.width);
}

template <typename Element>
void take(const TakeColumnsParams& p) {
  host::parallel_for(p.rows, p.rows * p.count, [&p](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Element* out = static_cast<Element*>(p.out) + row * p.out_stride;
      const Element* x = static_cast<const Element*>(p.x) + row * p.x_stride;
      for (int64_t k = 0; k < p.count; ++k) out[k] = p.order[k] < 0 ? Element{0} : x[p.order[k]];
    }
  });
}

void take_columns(TensorView out, TensorView x, TensorView order) {
  TakeColumnsParams params{};
  params.dtype = cpu_arg(x, "x").rank(2).rows_contiguous().activation();
  params.rows = x.size(0);
  params.width = x.size(1);
  cpu_arg(out, "out").activation(params.dtype).rank(2).size(0, params.rows).rows_contiguous();
  params.count = out.size(1);
  params.order = cpu_arg(order, "order").vector(kInt32Type, params.count).data<const int32_t>();
  params.out = out.data_ptr();
  params.x = x.data_ptr();
  params.out_stride = out.stride(0);
  params.x_stride = x.stride(0);
  run_kernel(params, [](const TakeColumnsParams& p) {
    check_order(p);
    if (p.dtype == DType::kFloat32) {
      take<uint32_t>(p);
    } else {
      take<uint16_t>(p);
    }
  });
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(take_columns, splitserve::take_columns);
