// How finished sums of a linear layer become its outputs: scaled, with a bias, perhaps through an activation,
// in the dtype of the outputs.
#pragma once

#include "cpu/gelu.h"
#include "cpu/linear.h"
#include "cpu/weight_formats.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// The sum of a row's int8 with stored weights as what it is worth but for the weights' scales.
SPLITSERVE_INLINE Vec scaled_dot(const RowCodes& codes, int64_t row, IntVec sum) {
  return __builtin_convertvector(sum - codes.zeros[row], Vec) * codes.scales[row];
}

// Where an output is among those that are kept.
SPLITSERVE_INLINE int64_t place_of(const LinearParams& p, int64_t row, int64_t col) {
  return (row - p.first_row) * p.out_stride + col - p.first_col;
}

// X: dtype of the inputs. Rounded as outputs are, so that bits are those of an activation after them.
template <typename X>
SPLITSERVE_INLINE Vec activated(const LinearParams& p, Vec sum) {
  if (p.epilogue == Epilogue::kNone) return sum;
  sum = rounded_to<X>(sum);
  return p.epilogue == Epilogue::kGelu ? gelu(sum, static_cast<const X*>(nullptr)) : gelu_tanh(sum);
}

// The outputs of any panel from its sums [rows][32].
template <typename X>
[[gnu::noinline]] void write_columns(const LinearParams& p, int64_t row, int64_t rows, int64_t col,
                                     const float* sums) {
  for (int64_t v = 0; v < kPanelVecs && col < p.cols; ++v, col += kLanes) {
    const int64_t count = p.cols - col;
    for (int64_t i = 0; i < rows; ++i) {
      Vec sum = load(sums + i * kPanelCols + v * kLanes);
      if (p.scales != nullptr) sum *= load_up_to(p.scales + col, count);
      if (p.bias != nullptr) sum += load_up_to(static_cast<const X*>(p.bias) + col, count);
      sum = activated<X>(p, sum);
      const int64_t offset = place_of(p, row + i, col);
      if (p.out_dtype == DType::kFloat32) {
        store_up_to(static_cast<float*>(p.out) + offset, sum, count);
      } else {
        store_up_to(static_cast<BFloat16*>(p.out) + offset, sum, count);
      }
    }
  }
}

template <typename Out, int kRows>
SPLITSERVE_INLINE void store_whole(Out* out, int64_t stride, const Vec (&sums)[kRows][kPanelVecs]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) store(out + i * stride + v * kLanes, sums[i][v]);
  }
}

// The same; a whole panel without bias and activation, the common case, goes straight from registers.
template <typename X, int kRows>
SPLITSERVE_INLINE void write(const LinearParams& p, int64_t row, int64_t col,
                             Vec (&sums)[kRows][kPanelVecs]) {
  if (p.bias != nullptr || p.epilogue != Epilogue::kNone || col + kPanelCols > p.cols) {
    float copy[kRows * kPanelCols];
    store_whole(copy, kPanelCols, sums);
    return write_columns<X>(p, row, kRows, col, copy);
  }
  if (p.scales != nullptr) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec scale = load(p.scales + col + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) sums[i][v] *= scale;
    }
  }
  const int64_t offset = place_of(p, row, col);
  if (p.out_dtype == DType::kFloat32)
    return store_whole(static_cast<float*>(p.out) + offset, p.out_stride, sums);
  store_whole(static_cast<BFloat16*>(p.out) + offset, p.out_stride, sums);
}

// Outputs that are in no cache when they are read: as much as an L2 cache holds.
inline constexpr int64_t kStreamedBytes = 2 << 20;

// Writes the outputs of a whole panel row by row: of rows that compete for few cache sets a line would be
// gone before its second half is written. Many rows go past the caches, whole lines at a time, so that memory
// is not read only to be overwritten; a StreamFence makes these visible to other threads.
template <typename Out>
class PanelWriter {
 public:
  PanelWriter(const LinearParams& p, int64_t row, int64_t col)
      : out_(static_cast<Out*>(p.out) + place_of(p, row, col)),
        stride_(p.out_stride),
        streams_(is_streamed(p) && reinterpret_cast<uintptr_t>(out_) % kLineBytes == 0 &&
                 stride_ * kOutBytes % kLineBytes == 0) {}

  static bool is_streamed([[maybe_unused]] const LinearParams& p) {
#if defined(__AVX512F__)
    return !p.is_part && p.rows * p.cols * kOutBytes >= kStreamedBytes;
#else
    return false;
#endif
  }

  SPLITSERVE_INLINE void put(const Vec (&sums)[kPanelVecs]) {
#if defined(__AVX512F__)
    for (int64_t i = 0; i < kPanelCols * kOutBytes / kLineBytes; ++i) {
      auto* const line = reinterpret_cast<__m512i*>(reinterpret_cast<char*>(out_) + i * kLineBytes);
      streams_ ? _mm512_stream_si512(line, line_of(sums, i, out_))
               : _mm512_storeu_si512(line, line_of(sums, i, out_));
    }
#else
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) store(out_ + v * kLanes, sums[v]);
#endif
    out_ += stride_;
  }

 private:
#if defined(__AVX512F__)
  SPLITSERVE_INLINE static __m512i line_of(const Vec (&sums)[kPanelVecs], int64_t i, const float*) {
    return reinterpret_cast<__m512i>(sums[i]);
  }

  SPLITSERVE_INLINE static __m512i line_of(const Vec (&sums)[kPanelVecs], int64_t, const BFloat16*) {
#if defined(__AVX512BF16__)
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(sums[1], sums[0]));
#else
    const HalfVec halves[] = {to_bfloat16(sums[0]), to_bfloat16(sums[1])};
    __m512i line;
    std::memcpy(&line, halves, sizeof line);
    return line;
#endif
  }
#endif

  static constexpr int64_t kLineBytes = 64, kOutBytes = sizeof(Out);
  Out* out_;
  const int64_t stride_;
  const bool streams_;
};

// Outlives a thread's part of a call.
struct StreamFence {
  ~StreamFence() {
#if defined(__AVX512F__)
    _mm_sfence();
#endif
  }
};

// The same as write_columns for a whole panel.
template <typename Out>
[[gnu::noinline]] void write_rows(const LinearParams& p, int64_t row, int64_t rows, int64_t col,
                                  const float* sums) {
  PanelWriter<Out> writer(p, row, col);
  for (int64_t i = 0; i < rows; ++i, sums += kPanelCols) {
    Vec outputs[kPanelVecs];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kPanelVecs; ++v) {
      outputs[v] = load(sums + v * kLanes);
      if (p.scales != nullptr) outputs[v] *= load(p.scales + col + v * kLanes);
      if (p.bias != nullptr) outputs[v] += load(static_cast<const BFloat16*>(p.bias) + col + v * kLanes);
      outputs[v] = activated<BFloat16>(p, outputs[v]);
    }
    writer.put(outputs);
  }
}

// The outputs of any panel of a product of bfloat16.
inline void write_panel(const LinearParams& p, int64_t row, int64_t rows, int64_t col, const float* sums) {
  if (col + kPanelCols > p.cols) return write_columns<BFloat16>(p, row, rows, col, sums);
  p.out_dtype == DType::kFloat32 ? write_rows<float>(p, row, rows, col, sums)
                                 : write_rows<BFloat16>(p, row, rows, col, sums);
}

// Whether the outputs of a panel of a product of bfloat16 go past the caches.
SPLITSERVE_INLINE bool streams_panel(const LinearParams& p, int64_t col) {
  const bool is_streamed = p.out_dtype == DType::kFloat32 ? PanelWriter<float>::is_streamed(p)
                                                          : PanelWriter<BFloat16>::is_streamed(p);
  return is_streamed && col + kPanelCols <= p.cols;
}

// Writes them.
template <int kRows>
SPLITSERVE_INLINE void stream(const LinearParams& p, int64_t row, int64_t col,
                              const Vec (&sums)[kRows][kPanelVecs]) {
  alignas(64) float copy[kRows * kPanelCols];
  store_whole(copy, kPanelCols, sums);
  p.out_dtype == DType::kFloat32 ? write_rows<float>(p, row, kRows, col, copy)
                                 : write_rows<BFloat16>(p, row, kRows, col, copy);
}

SPLITSERVE_INLINE IntVec load_sums(const void* p) {
  IntVec sums;
  std::memcpy(&sums, p, sizeof sums);
  return sums;
}

// The same from sums of integers.
template <typename Out>
[[gnu::noinline]] void write_dot_rows(const LinearParams& p, int64_t row, int64_t rows, int64_t col,
                                      const float* sums) {
  PanelWriter<Out> writer(p, row, col);
  Vec scales[kPanelVecs], biases[kPanelVecs] = {};
  for (int v = 0; v < kPanelVecs; ++v) {
    scales[v] = load(p.scales + col + v * kLanes);
    if (p.bias != nullptr) biases[v] = load(static_cast<const BFloat16*>(p.bias) + col + v * kLanes);
  }
  for (int64_t i = 0; i < rows; ++i, sums += kPanelCols) {
    Vec outputs[kPanelVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVecs; ++v) {
      outputs[v] = scaled_dot(p.codes, row + i, load_sums(sums + v * kLanes)) * scales[v];
      if (p.bias != nullptr) outputs[v] += biases[v];
      outputs[v] = activated<BFloat16>(p, outputs[v]);
    }
    writer.put(outputs);
  }
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
