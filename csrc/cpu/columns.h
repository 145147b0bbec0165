// Columns that Python hands over as a list: each kernel names them once, in a function
//   template <typename Visitor> void visit(Visitor&& column, Params& params) { column("name", params.field);
//   ... }
// which ReadColumns fills from the tensors, and DescribeColumns writes out, so that Python can compare it
// with its own declarations. The type of a field is that of the column's elements.
#pragma once

#include <tvm/ffi/container/array.h>

#include <sstream>
#include <string>
#include <type_traits>

#include "common/check.h"

namespace splitserve {

// A matrix of one row per row of the batch or of the step.
struct Table {
  int32_t* data;
  int64_t columns, stride;
  int32_t* row(int64_t i) const { return data + i * stride; }
};

template <typename T>
inline constexpr DLDataType kTypeOf{};
template <>
inline constexpr DLDataType kTypeOf<int32_t> = kInt32Type;
template <>
inline constexpr DLDataType kTypeOf<bool>{kDLBool, 8, 1};
template <>
inline constexpr DLDataType kTypeOf<uint16_t>{kDLUInt, 16, 1};

inline Table table_arg(const TensorView& tensor, const char* name) {
  cpu_arg(tensor, name).rank(2).type({kInt32Type}).rows_contiguous();
  return {static_cast<int32_t*>(tensor.data_ptr()), tensor.size(1), tensor.stride(0)};
}

// Takes one tensor after the other, of so many rows each; done() once all are taken.
class ReadColumns {
 public:
  ReadColumns(const tvm::ffi::Array<tvm::ffi::Tensor>& tensors, int64_t rows)
      : tensors_(tensors), rows_(rows) {}

  template <typename T>
  void operator()(const char* name, T*& field) {
    using Element = std::remove_const_t<T>;
    const TensorView tensor = take(name);
    field = cpu_arg(tensor, name).vector(kTypeOf<Element>, rows_).template data<Element>();
  }

  void operator()(const char* name, Table& field) {
    const TensorView tensor = take(name);
    field = table_arg(tensor, name);
    cpu_arg(tensor, name).size(0, rows_);
  }

  void done() const {
    SPLITSERVE_CHECK_VALUE(next_ == tensors_.size(),
                           "columns: expected " << next_ << ", got " << tensors_.size());
  }

 private:
  TensorView take(const char* name) {
    SPLITSERVE_CHECK_VALUE(next_ < tensors_.size(), name << ": is missing");
    return tensors_[next_++];
  }

  const tvm::ffi::Array<tvm::ffi::Tensor>& tensors_;
  int64_t rows_;
  size_t next_ = 0;
};

// Writes name, dtype and number of dimensions of each column, one a line.
class DescribeColumns {
 public:
  template <typename T>
  void operator()(const char* name, T*&) {
    write(name, kTypeOf<std::remove_const_t<T>>, 1);
  }

  void operator()(const char* name, Table&) { write(name, kInt32Type, 2); }

  std::string text() const { return text_.str(); }

 private:
  void write(const char* name, DLDataType type, int dimensions) {
    text_ << name << ' ' << tvm::ffi::DLDataTypeToString(type) << ' ' << dimensions << '\n';
  }

  std::ostringstream text_;
};

// The columns of a batch, BatchColumns of worker/ops/columns.py, in its order.
template <typename Visitor, typename Params>
void visit_batch(Visitor&& column, Params& p) {
  column("occupied", p.occupied);
  column("features", p.features);
  column("tokens", p.tokens);
  column("num_tokens", p.num_tokens);
  column("num_computed", p.num_computed);
  column("num_blocks", p.num_blocks);
  column("block_table", p.block_table);
}

}  // namespace splitserve
