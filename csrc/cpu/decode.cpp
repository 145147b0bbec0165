// The ends of a recorded decode step: one token of each of its rows is laid out as the model's inputs, and
// what is drawn is appended. The batch's columns are indexed by row, and stay where they are.
#include <algorithm>
#include <cstring>

#include "cpu/columns.h"
#include "cpu/program.h"

namespace splitserve {
namespace {

using tvm::ffi::Array;
using tvm::ffi::String;
using tvm::ffi::Tensor;

// Set in flags[0] beside the features of the rows.
constexpr int32_t kNotLastToken = 1 << 16;

struct Rows {
  const int32_t* data;  // [count], each below `limit`
  int64_t count, limit;
};

struct DecodeParams {
  Rows rows;
  // Columns of the batch, of `limit` rows each.
  const bool* occupied;
  const uint16_t* features;
  Table tokens, block_table;
  const int32_t *num_tokens, *num_blocks;
  int32_t* num_computed;
  // Inputs of the model, of `count` rows each: the layout, and what is shared by steps of all sizes.
  int32_t *token_ids, *positions, *slots, *seq_lens;
  Table block_tables;
  int32_t* flags;
  int64_t block_size, max_len;
};

// In the order of worker/ops/columns.py.
template <typename Visitor>
void visit_layout(Visitor&& column, DecodeParams& p) {
  column("token_ids", p.token_ids);
  column("positions", p.positions);
  column("slot_mapping", p.slots);
  column("seq_lens", p.seq_lens);
}

// Name, dtype and number of dimensions of each: the batch's, then the layout's.
String decode_columns() {
  DecodeParams params{};
  DescribeColumns describe;
  visit_batch(describe, params);
  visit_layout(describe, params);
  return describe.text();
}

int32_t* ints_arg(const TensorView& tensor, const char* name, int64_t length) {
  return cpu_arg(tensor, name).vector(kInt32Type, length).data<int32_t>();
}

Rows rows_arg(const TensorView& rows, int64_t limit) {
  cpu_arg(rows, "rows").rank(1);
  return {ints_arg(rows, "rows", rows.size(0)), rows.size(0), limit};
}

void check_row(const Rows& rows, int64_t i) {
  SPLITSERVE_CHECK_VALUE(rows.data[i] >= 0 && rows.data[i] < rows.limit,
                         "rows: " << rows.data[i] << " is outside the batch");
}

// Engine and worker have to agree about a row before anything is computed for it.
void check_progress(const DecodeParams& p, int64_t i) {
  check_row(p.rows, i);
  const int64_t row = p.rows.data[i], end = p.num_computed[row] + int64_t{1};
  SPLITSERVE_CHECK_VALUE(p.occupied[row], "rows: " << row << " is not in the batch");
  const bool has_room = end <= p.num_tokens[row] && end <= p.num_blocks[row] * p.block_size;
  SPLITSERVE_CHECK_VALUE(end > 0 && end <= p.max_len && has_room,
                         "row " << row << " would compute up to token " << end << " of " << p.max_len
                                << ", but has " << p.num_tokens[row] << " tokens and " << p.num_blocks[row]
                                << " blocks");
}

void lay_out(const DecodeParams& p, int64_t i) {
  const int64_t row = p.rows.data[i];
  const int32_t position = p.num_computed[row], end = position + 1;
  const int32_t* blocks = p.block_table.row(row);
  p.num_computed[row] = end;
  p.token_ids[i] = p.tokens.row(row)[position];
  p.positions[i] = position;
  p.slots[i] = static_cast<int32_t>(blocks[position / p.block_size] * p.block_size + position % p.block_size);
  p.seq_lens[i] = end;
  const int64_t used = (end + p.block_size - 1) / p.block_size;
  std::copy(blocks, blocks + used, p.block_tables.row(i));
  p.flags[0] |= p.features[row];
  if (end != p.num_tokens[row]) p.flags[0] |= kNotLastToken;
}

void lay_out_all(const DecodeParams& p) {
  for (int64_t i = 0; i < p.rows.count; ++i) check_progress(p, i);
  p.flags[0] = 0;
  for (int64_t i = 0; i < p.rows.count; ++i) lay_out(p, i);
}

void decode_inputs(TensorView rows, Array<Tensor> batch, Array<Tensor> layout, TensorView block_tables,
                   TensorView flags, int64_t block_size, int64_t max_len) {
  DecodeParams params{};
  const int64_t limit = batch.empty() ? 0 : batch[0].size(0);
  params.rows = rows_arg(rows, limit);
  ReadColumns read_batch(batch, limit), read_layout(layout, params.rows.count);
  visit_batch(read_batch, params);
  read_batch.done();
  visit_layout(read_layout, params);
  read_layout.done();
  params.block_tables = table_arg(block_tables, "block_tables");
  cpu_arg(block_tables, "block_tables").size(0, params.rows.count).size(1, params.block_table.columns);
  params.flags = ints_arg(flags, "flags", 2);
  SPLITSERVE_CHECK_VALUE(block_size > 0, "block_size: must be positive, got " << block_size);
  const int64_t room = std::min(params.tokens.columns, params.block_table.columns * block_size);
  SPLITSERVE_CHECK_VALUE(max_len > 0 && max_len <= room,
                         "max_len: expected 1 to " << room << ", got " << max_len);
  params.block_size = block_size;
  params.max_len = max_len;
  run_kernel(params, lay_out_all);
}

// What decode_inputs writes of the block tables, for a group of layers that see a window of tokens.
struct WindowParams {
  Rows rows;
  const int32_t* seq_lens;  // [count], as decode_inputs left them
  Table block_table;        // [limit], of the batch
  int32_t* slots;           // [count]
  Table block_tables;       // [count]
  int64_t block_size, window;
};

void lay_out_windows(const WindowParams& p) {
  for (int64_t i = 0; i < p.rows.count; ++i) {
    check_row(p.rows, i);
    SPLITSERVE_CHECK_VALUE(p.seq_lens[i] > 0 && p.seq_lens[i] <= p.block_table.columns * p.block_size,
                           "seq_lens: " << p.seq_lens[i] << " is not a length of a row");
  }
  for (int64_t i = 0; i < p.rows.count; ++i) {
    const int64_t end = p.seq_lens[i], position = end - 1;
    const int32_t* blocks = p.block_table.row(p.rows.data[i]);
    p.slots[i] =
        static_cast<int32_t>(blocks[position / p.block_size] * p.block_size + position % p.block_size);
    // Those before have left, and are not read.
    const int64_t first = std::max(int64_t{0}, end - p.window) / p.block_size;
    const int64_t used = (end + p.block_size - 1) / p.block_size;
    std::copy(blocks + first, blocks + used, p.block_tables.row(i) + first);
  }
}

void window_inputs(TensorView rows, TensorView seq_lens, TensorView block_table, TensorView slots,
                   TensorView block_tables, int64_t block_size, int64_t window) {
  WindowParams params{};
  params.block_table = table_arg(block_table, "block_table");
  params.rows = rows_arg(rows, block_table.size(0));
  params.seq_lens = ints_arg(seq_lens, "seq_lens", params.rows.count);
  params.slots = ints_arg(slots, "slots", params.rows.count);
  params.block_tables = table_arg(block_tables, "block_tables");
  cpu_arg(block_tables, "block_tables").size(0, params.rows.count).size(1, params.block_table.columns);
  SPLITSERVE_CHECK_VALUE(block_size > 0, "block_size: must be positive, got " << block_size);
  SPLITSERVE_CHECK_VALUE(window > 0, "window: must be positive, got " << window);
  params.block_size = block_size;
  params.window = window;
  run_kernel(params, lay_out_windows);
}

struct AppendParams {
  Rows rows;
  const int32_t* token_ids;  // [count]; negative: none was drawn
  Table tokens;
  int32_t* num_tokens;
  int32_t* flags;
};

void append_all(const AppendParams& p) {
  for (int64_t i = 0; i < p.rows.count; ++i) {
    check_row(p.rows, i);
    const int64_t row = p.rows.data[i], length = p.num_tokens[row];
    SPLITSERVE_CHECK_VALUE(length >= 0 && length < p.tokens.columns, "rows: " << row << " is full");
  }
  p.flags[1] = 0;
  for (int64_t i = 0; i < p.rows.count; ++i) {
    if (p.token_ids[i] < 0) {
      ++p.flags[1];
      continue;
    }
    const int64_t row = p.rows.data[i];
    p.tokens.row(row)[p.num_tokens[row]++] = p.token_ids[i];
  }
}

void append_tokens(TensorView rows, TensorView token_ids, TensorView tokens, TensorView num_tokens,
                   TensorView flags) {
  AppendParams params{};
  params.tokens = table_arg(tokens, "tokens");
  params.rows = rows_arg(rows, tokens.size(0));
  params.token_ids = ints_arg(token_ids, "token_ids", params.rows.count);
  params.num_tokens = ints_arg(num_tokens, "num_tokens", tokens.size(0));
  params.flags = ints_arg(flags, "flags", 2);
  run_kernel(params, append_all);
}

struct TakeParams {
  Rows rows;
  const char* column;  // [limit]
  char* out;           // [count]
  int64_t element;
};

void take_all(const TakeParams& p) {
  for (int64_t i = 0; i < p.rows.count; ++i) {
    check_row(p.rows, i);
    std::memcpy(p.out + i * p.element, p.column + p.rows.data[i] * p.element, static_cast<size_t>(p.element));
  }
}

void take_rows(TensorView out, TensorView column, TensorView rows) {
  TakeParams params{};
  cpu_arg(column, "column").rank(1).type({kFloat32Type, kInt32Type, kInt64Type}).rows_contiguous();
  params.rows = rows_arg(rows, column.size(0));
  params.column = static_cast<const char*>(column.data_ptr());
  params.out = cpu_arg(out, "out").vector(column.dtype(), params.rows.count).data<char>();
  params.element = column.dtype().bits / 8;
  run_kernel(params, take_all);
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(decode_columns, splitserve::decode_columns);
SPLITSERVE_EXPORT(decode_inputs, splitserve::decode_inputs);
SPLITSERVE_EXPORT(window_inputs, splitserve::window_inputs);
SPLITSERVE_EXPORT(append_tokens, splitserve::append_tokens);
SPLITSERVE_EXPORT(take_rows, splitserve::take_rows);
