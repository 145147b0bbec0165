// Rounding rows to small integers with scales, symmetrically and to nearest.
#include <algorithm>
#include <cmath>

#include "common/bfloat16.h"
#include "cpu/packed_arg.h"
#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve {
namespace {

float value(const float* p) { return *p; }
float value(const BFloat16* p) { return host::as_float(host::UintVec{} + (uint32_t{p->bits} << 16))[0]; }

// x to the nearest integer, ties to even, from low to high; low for what is not a number. Adding 1.5 * 2^23
// leaves no bits for a fraction.
int8_t rounded(float x, float low, float high) {
  constexpr float kNoFraction = 12582912.0f;
  const float bounded = x > low ? (x < high ? x : high) : low;
  return static_cast<int8_t>((bounded + kNoFraction) - kNoFraction);
}

// The value of the largest magnitude among n; NaN if one is.
template <typename T>
float extreme(const T* x, int64_t n) {
  float result = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float v = value(x + i);
    if (std::fabs(v) > std::fabs(result) || v != v) result = v;
    if (v != v) break;
  }
  return result;
}

// Where the scale is 0, so are the codes.
template <typename T>
void round_all(int8_t* codes, const T* x, int64_t n, float scale, float low, float high) {
  for (int64_t i = 0; i < n; ++i) codes[i] = scale == 0 ? 0 : rounded(value(x + i) / scale, low, high);
}

// A row to multiples of its largest magnitude over 127.
template <typename T>
void int8_row(int8_t* codes, float* scale, const T* x, int64_t size) {
  *scale = std::fabs(extreme(x, size)) / 127.0f;
  round_all(codes, x, size, *scale, -127, 127);
}

// Each group of a row: the value of the largest magnitude becomes -8 scales, so none of the 16 codes is
// wasted. Codes are chosen for the scale as it is kept.
template <typename T>
void int4_row(int8_t* codes, BFloat16* scales, const T* x, int64_t size) {
  for (int64_t k = 0; k < size; k += kGroupDepth) {
    const int64_t n = size - k < kGroupDepth ? size - k : kGroupDepth;
    BFloat16* scale = scales + k / kGroupDepth;
    host::store_partial(scale, host::Vec{} + extreme(x + k, n) / -8.0f, 1);
    round_all(codes + k, x + k, n, value(scale), -8, 7);
  }
}

// The code of q, the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with its sign, of two equally near ones the
// even code.
int8_t mxfp4_code(float q) {
  const float size = std::fabs(q);
  const int magnitude = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) +
                        (size >= 3.5f) + (size > 5.0f);
  return static_cast<int8_t>(std::signbit(q) ? magnitude | 8 : magnitude);
}

constexpr int kScaleBias = 127, kLargestExponent = 2;
constexpr uint8_t kScaleOfNaN = 255;

// Each group of a row, as the OCP's specification of MX formats has it: the value of the largest magnitude is
// within a factor of 2 of the largest code. What is in the format already stays as it is.
template <typename T>
void mxfp4_row(int8_t* codes, uint8_t* scales, const T* x, int64_t size) {
  for (int64_t k = 0; k < size; k += kGroupDepth) {
    const int64_t n = size - k < kGroupDepth ? size - k : kGroupDepth;
    const float largest = std::fabs(extreme(x + k, n));
    const bool is_number = std::isfinite(largest);
    int exponent = 1 - kScaleBias;
    if (is_number && largest > 0) exponent = std::max(exponent, std::ilogb(largest) - kLargestExponent);
    scales[k / kGroupDepth] = is_number ? static_cast<uint8_t>(exponent + kScaleBias) : kScaleOfNaN;
    const float inverse = std::ldexp(1.0f, -exponent);
    for (int64_t i = k; i < k + n; ++i) codes[i] = is_number ? mxfp4_code(value(x + i) * inverse) : 0;
  }
}

// The numbers that a row of MXFP4 stands for: two codes per byte, the lower one first.
void row_of_mxfp4(BFloat16* out, const uint8_t* codes, const uint8_t* scales, int64_t size) {
  constexpr float kValues[] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  for (int64_t group = 0; group < size / kGroupDepth; ++group) {
    const int scale = scales[group];
    const float factor = scale == kScaleOfNaN ? NAN : std::ldexp(1.0f, scale - kScaleBias);
    float values[kGroupDepth];
    for (int64_t i = 0; i < kGroupDepth / 2; ++i) {
      const uint8_t pair = codes[group * kGroupDepth / 2 + i];
      values[2 * i] = factor * kValues[pair & 15];
      values[2 * i + 1] = factor * kValues[pair >> 4];
    }
    for (int64_t i = 0; i < kGroupDepth; i += host::kLanes) {
      host::store(out + group * kGroupDepth + i, host::load(values + i));
    }
  }
}

// Calls fn(codes of the row, its number, its values) for every row.
template <typename T, typename Fn>
void each_row(const TensorView& codes, const TensorView& rows, const Fn& fn) {
  host::parallel_for(rows.size(0), rows.size(0) * rows.size(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      fn(static_cast<int8_t*>(codes.data_ptr()) + i * codes.stride(0), i,
         static_cast<const T*>(rows.data_ptr()) + i * rows.stride(0));
    }
  });
}

template <typename Fn>
void for_rows(const TensorView& codes, const TensorView& rows, const Fn& fn) {
  const DType dtype = cpu_arg(rows, "rows").rank(2).rows_contiguous().activation();
  cpu_arg(codes, "codes")
      .rank(2)
      .type({kInt8Type})
      .size(0, rows.size(0))
      .size(1, rows.size(1))
      .rows_contiguous();
  dtype == DType::kFloat32 ? each_row<float>(codes, rows, fn) : each_row<BFloat16>(codes, rows, fn);
}

void quantize_int8(TensorView codes, TensorView scales, TensorView rows) {
  float* out = cpu_arg(scales, "scales").vector(kFloat32Type, rows.size(0)).data<float>();
  const int64_t size = rows.size(1);
  for_rows(codes, rows,
           [=](int8_t* row_codes, int64_t row, const auto* x) { int8_row(row_codes, out + row, x, size); });
}

void quantize_int4(TensorView codes, TensorView scales, TensorView rows) {
  const int64_t size = rows.size(1), stride = scales.stride(0);
  BFloat16* out = cpu_arg(scales, "scales").rank(2).type({kBFloat16Type}).rows_contiguous().data<BFloat16>();
  cpu_arg(scales, "scales").size(0, rows.size(0)).size(1, ceil_div(size, kGroupDepth));
  for_rows(codes, rows, [=](int8_t* row_codes, int64_t row, const auto* x) {
    int4_row(row_codes, out + row * stride, x, size);
  });
}

void quantize_mxfp4(TensorView codes, TensorView scales, TensorView rows) {
  const int64_t size = rows.size(1), stride = scales.stride(0);
  uint8_t* out = cpu_arg(scales, "scales").rank(2).type({kUint8Type}).rows_contiguous().data<uint8_t>();
  cpu_arg(scales, "scales").size(0, rows.size(0)).size(1, ceil_div(size, kGroupDepth));
  for_rows(codes, rows, [=](int8_t* row_codes, int64_t row, const auto* x) {
    mxfp4_row(row_codes, out + row * stride, x, size);
  });
}

void dequantize_mxfp4(TensorView out, TensorView codes, TensorView scales) {
  const int64_t rows = out.size(0), size = out.size(1);
  BFloat16* values = cpu_arg(out, "out").rank(2).type({kBFloat16Type}).rows_contiguous().data<BFloat16>();
  SPLITSERVE_CHECK_VALUE(size % kGroupDepth == 0, "out: expected whole groups, got " << size << " columns");
  cpu_arg(codes, "codes").rank(2).type({kUint8Type}).size(0, rows).size(1, size / 2).rows_contiguous();
  cpu_arg(scales, "scales").rank(2).type({kUint8Type}).size(0, rows).size(1, size / kGroupDepth);
  cpu_arg(scales, "scales").rows_contiguous();
  host::parallel_for(rows, rows * size, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      row_of_mxfp4(values + row * out.stride(0),
                   static_cast<const uint8_t*>(codes.data_ptr()) + row * codes.stride(0),
                   static_cast<const uint8_t*>(scales.data_ptr()) + row * scales.stride(0), size);
    }
  });
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(quantize_int8, splitserve::quantize_int8);
SPLITSERVE_EXPORT(quantize_int4, splitserve::quantize_int4);
SPLITSERVE_EXPORT(quantize_mxfp4, splitserve::quantize_mxfp4);
SPLITSERVE_EXPORT(dequantize_mxfp4, splitserve::dequantize_mxfp4);
