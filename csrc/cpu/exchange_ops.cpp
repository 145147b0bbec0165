// Exchanges between the ranks of one machine: sums, gathered columns, and what settles a step. These can be
// recorded; a step that is abandoned is not one that was recorded.
#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "cpu/exchange.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

constexpr DLDataType kUint8Type{kDLUInt, 8, 1};
constexpr int64_t kOwnWords = sizeof(OwnState) / sizeof(int64_t);

// The common first arguments of every call.
Exchange exchange_arg(const TensorView& memory, const TensorView& own, int64_t rank, int64_t size) {
  SPLITSERVE_CHECK_VALUE(size >= 1 && size <= kMaxRanks, "size: expected 1 to 64 ranks, got " << size);
  SPLITSERVE_CHECK_VALUE(rank >= 0 && rank < size, "rank: expected 0 to " << size - 1 << ", got " << rank);
  char* data = cpu_arg(memory, "memory").vector(kUint8Type, exchange_bytes(size)).data<char>();
  SPLITSERVE_CHECK_VALUE(reinterpret_cast<uintptr_t>(data) % alignof(RankLine) == 0,
                         "memory: expected an address that is a multiple of " << alignof(RankLine));
  auto* state = cpu_arg(own, "own").vector(kInt64Type, kOwnWords).data<OwnState>();
  return {data, state, rank, size};
}

void check_contiguous(const TensorView& tensor, const char* name) {
  cpu_arg(tensor, name).rank(2).rows_contiguous();
  SPLITSERVE_CHECK_VALUE(tensor.size(0) <= 1 || tensor.stride(0) == tensor.size(1),
                         name << ": expected contiguous rows");
}

void copy(char* to, const char* from, int64_t bytes) {
  host::parallel_for(bytes, bytes / 4, [=](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

struct SumParams {
  Exchange exchange;
  const char* partial;
  SumPartsParams sum;  // of the whole; parts, first and count are those of each part
};

void sum_all(const SumParams& p) {
  const int64_t element = dtype_bytes(p.sum.part_dtype), most = kSlotBytes / element;
  SumPartsParams sum = p.sum;
  for (sum.first = 0; sum.first < p.sum.count; sum.first += most) {
    sum.count = std::min(most, p.sum.count - sum.first);
    p.exchange.begin();
    copy(p.exchange.slot(p.exchange.rank), p.partial + sum.first * element, sum.count * element);
    p.exchange.post();
    for (int64_t other = 0; other < p.exchange.size; ++other) p.exchange.wait_for(other);
    sum.parts = p.exchange.slot(0);
    sum.out = static_cast<char*>(p.sum.out) + sum.first * dtype_bytes(sum.dtype);
    SPLITSERVE_CALL_KERNEL(sum_parts, sum);
  }
}

void exchange_sum(TensorView memory, TensorView own, int64_t rank, int64_t size, TensorView out,
                  TensorView partial, Optional<TensorView> bias) {
  SumParams params{};
  params.exchange = exchange_arg(memory, own, rank, size);
  check_contiguous(out, "out");
  check_contiguous(partial, "partial");
  SumPartsParams& sum = params.sum;
  sum.dtype = cpu_arg(out, "out").activation();
  sum.part_dtype = cpu_arg(partial, "partial").size(0, out.size(0)).size(1, out.size(1)).activation();
  if (sum.part_dtype != DType::kFloat32) cpu_arg(partial, "partial").activation(sum.dtype);
  if (bias.has_value()) {
    const TensorView& vector = bias.value();
    sum.bias = cpu_arg(vector, "bias")
                   .activation(sum.dtype)
                   .rank(1)
                   .size(0, out.size(1))
                   .rows_contiguous()
                   .data<void>();
  }
  sum.stride = 2 * kSlotBytes;
  sum.num_parts = size;
  sum.out = out.data_ptr();
  sum.width = out.size(1);
  sum.count = out.size(0) * sum.width;
  params.partial = static_cast<const char*>(partial.data_ptr());
  run_kernel(params, sum_all);
}

struct GatherParams {
  Exchange exchange;
  const float* columns;  // [rows, share] of this rank
  float* out;            // [rows, total] on rank 0
  int64_t rows, total;
};

struct Columns {
  int64_t begin, count;
};

// The first ranks have one less where all cannot have the same.
Columns columns_of(const GatherParams& p, int64_t rank) {
  const int64_t begin = p.total * rank / p.exchange.size;
  return {begin, p.total * (rank + 1) / p.exchange.size - begin};
}

// Calls fn(row, column, place, n) for the runs of columns that a rank has among the elements of one part:
// those from `first` on of a matrix as wide as the widest share. `place` is where a run stands in the part.
template <typename Fn>
void for_runs(int64_t first, int64_t count, int64_t width, int64_t share, const Fn& fn) {
  for (int64_t i = first; i < first + count;) {
    const int64_t column = i % width, n = std::min(first + count - i, width - column);
    if (column < share) fn(i / width, column, i - first, std::min(n, share - column));
    i += n;
  }
}

void send_columns(const GatherParams& p, int64_t first, int64_t count, int64_t width) {
  auto* slot = reinterpret_cast<float*>(p.exchange.slot(p.exchange.rank));
  const int64_t share = columns_of(p, p.exchange.rank).count;
  for_runs(first, count, width, share, [&](int64_t row, int64_t column, int64_t place, int64_t n) {
    std::memcpy(slot + place, p.columns + row * share + column, static_cast<size_t>(n) * sizeof(float));
  });
}

void receive_columns(const GatherParams& p, int64_t first, int64_t count, int64_t width) {
  for (int64_t other = 1; other < p.exchange.size; ++other) {
    p.exchange.wait_for(other);
    const auto* slot = reinterpret_cast<const float*>(p.exchange.slot(other));
    const Columns theirs = columns_of(p, other);
    for_runs(first, count, width, theirs.count, [&](int64_t row, int64_t column, int64_t place, int64_t n) {
      float* to = p.out + row * p.total + theirs.begin + column;
      std::memcpy(to, slot + place, static_cast<size_t>(n) * sizeof(float));
    });
  }
}

void gather_all(const GatherParams& p) {
  const bool is_root = p.exchange.rank == 0;
  const int64_t width = (p.total + p.exchange.size - 1) / p.exchange.size, all = p.rows * width;
  constexpr int64_t kMost = kSlotBytes / sizeof(float);
  for (int64_t first = 0; first < all; first += kMost) {
    const int64_t count = std::min(kMost, all - first);
    p.exchange.begin();
    if (!is_root) send_columns(p, first, count, width);
    p.exchange.post();
    if (is_root) receive_columns(p, first, count, width);
  }
  if (!is_root) return;
  const int64_t share = columns_of(p, 0).count;
  for (int64_t row = 0; row < p.rows; ++row) {
    std::memcpy(p.out + row * p.total, p.columns + row * share, static_cast<size_t>(share) * sizeof(float));
  }
}

void exchange_gather(TensorView memory, TensorView own, int64_t rank, int64_t size, Optional<TensorView> out,
                     TensorView columns, int64_t total) {
  GatherParams params{};
  params.exchange = exchange_arg(memory, own, rank, size);
  params.total = total;
  SPLITSERVE_CHECK_VALUE(total >= size, "total: expected at least " << size << ", got " << total);
  check_contiguous(columns, "columns");
  cpu_arg(columns, "columns").type({kFloat32Type}).size(1, columns_of(params, rank).count);
  params.columns = static_cast<const float*>(columns.data_ptr());
  params.rows = columns.size(0);
  SPLITSERVE_CHECK_VALUE(out.has_value() == (rank == 0), "out: rank 0 has it, and no other");
  if (out.has_value()) {
    check_contiguous(out.value(), "out");
    params.out =
        cpu_arg(out.value(), "out").type({kFloat32Type}).size(0, params.rows).size(1, total).data<float>();
  }
  run_kernel(params, gather_all);
}

struct SettleParams {
  Exchange exchange;
  char* values;
  int64_t bytes;
};

void settle_all(const SettleParams& p) {
  int64_t first = 0;
  // At least one part, as the ranks meet in it.
  do {
    const int64_t bytes = std::min(kSlotBytes, p.bytes - first);
    p.exchange.begin();
    if (p.exchange.rank == 0) copy(p.exchange.slot(0), p.values + first, bytes);
    p.exchange.post();
    p.exchange.wait_for(0);
    if (p.exchange.rank != 0) copy(p.values + first, p.exchange.slot(0), bytes);
    first += bytes;
  } while (first < p.bytes);
  p.exchange.settle();
}

void exchange_settle(TensorView memory, TensorView own, int64_t rank, int64_t size, TensorView values) {
  cpu_arg(values, "values").rank(1);
  SettleParams params{};
  params.exchange = exchange_arg(memory, own, rank, size);
  params.values = cpu_arg(values, "values").vector(kInt32Type, values.size(0)).data<char>();
  params.bytes = values.size(0) * static_cast<int64_t>(sizeof(int32_t));
  run_kernel(params, settle_all);
}

void exchange_abandon(TensorView memory, TensorView own, int64_t rank, int64_t size) {
  exchange_arg(memory, own, rank, size).abandon();
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(exchange_bytes, splitserve::exchange_bytes);
SPLITSERVE_EXPORT(exchange_sum, splitserve::exchange_sum);
SPLITSERVE_EXPORT(exchange_gather, splitserve::exchange_gather);
SPLITSERVE_EXPORT(exchange_settle, splitserve::exchange_settle);
SPLITSERVE_EXPORT(exchange_abandon, splitserve::exchange_abandon);
