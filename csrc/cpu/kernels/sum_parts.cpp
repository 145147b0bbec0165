// Adds up the parts of all ranks, element by element, and rounds once.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// n elements from `begin` on, which belong to one row and begin at `column` of it.
template <typename Part, typename Out>
void add_up(const SumPartsParams& p, int64_t begin, int64_t column, int64_t n) {
  Out* out = static_cast<Out*>(p.out) + begin;
  const Out* bias = p.bias != nullptr ? static_cast<const Out*>(p.bias) + column : nullptr;
  const int64_t stride = p.stride / static_cast<int64_t>(sizeof(Part));
  for (int64_t i = 0; i < n; i += kLanes) {
    const Part* part = static_cast<const Part*>(p.parts) + begin + i;
    Vec sum = load_up_to(part, n - i);
    for (int64_t rank = 1; rank < p.num_parts; ++rank) sum = sum + load_up_to(part + rank * stride, n - i);
    if (bias != nullptr) sum = sum + load_up_to(bias + i, n - i);
    store_up_to(out + i, sum, n - i);
  }
}

template <typename Part, typename Out>
void add_up_rows(const SumPartsParams& p) {
  parallel_for(p.count, p.count * p.num_parts, [&p](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t column = (p.first + begin) % p.width, left = p.width - column;
      const int64_t n = end - begin < left ? end - begin : left;
      add_up<Part, Out>(p, begin, column, n);
      begin += n;
    }
  });
}

}  // namespace

void sum_parts(const SumPartsParams& p) {
  if (p.dtype == DType::kFloat32) {
    add_up_rows<float, float>(p);
  } else if (p.part_dtype == DType::kFloat32) {
    add_up_rows<float, BFloat16>(p);
  } else {
    add_up_rows<BFloat16, BFloat16>(p);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
