// Copies, signs, sums and products of tensors of any layout, in float32 and rounded once: the bits of torch.
#include "cpu/elementwise.h"

#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

constexpr int kLast = kElementDims - 1;
// Of a row that is computed in one go; longer ones are cut, for the threads.
constexpr int64_t kPiece = 4096;

template <Elementwise kKind>
SPLITSERVE_INLINE Vec apply(Vec x, Vec y) {
  if constexpr (kKind == Elementwise::kNegate) return -x;
  if constexpr (kKind == Elementwise::kAdd) return x + y;
  if constexpr (kKind == Elementwise::kSubtract) return x - y;
  if constexpr (kKind == Elementwise::kMultiply) return x * y;
  return x;
}

constexpr bool takes_two(Elementwise kind) {
  return kind != Elementwise::kCopy && kind != Elementwise::kNegate;
}

// Up to kLanes elements; in each lane the same one if the stride is 0.
template <typename T>
SPLITSERVE_INLINE Vec load_run(const T* x, int64_t stride, int64_t n) {
  if (stride == 1) return load_up_to(x, n);
  if (stride == 0) return broadcast(load_partial(x, 1)[0]);
  T buffer[kLanes] = {};
  for (int64_t i = 0; i < n && i < kLanes; ++i) buffer[i] = x[i * stride];
  return load(buffer);
}

template <typename T>
SPLITSERVE_INLINE void store_run(T* out, int64_t stride, Vec v, int64_t n) {
  if (stride == 1) return store_up_to(out, v, n);
  T buffer[kLanes];
  store(buffer, v);
  for (int64_t i = 0; i < n && i < kLanes; ++i) out[i * stride] = buffer[i];
}

// Where the elements of the tensors are that one loop computes.
template <typename Out, typename In>
struct ElementRow {
  Out* out;
  const In *x, *y;
};

template <Elementwise kKind, bool kDense, typename Out, typename In>
SPLITSERVE_INLINE void compute(const ElementRow<Out, In>& row, const ElementwiseParams& p, int64_t begin,
                               int64_t end) {
  constexpr bool kTwo = takes_two(kKind);
  int64_t i = begin;
  if constexpr (kDense) {
    for (; i + kLanes <= end; i += kLanes) {
      const Vec y = kTwo ? load(row.y + i) : Vec{};
      store(row.out + i, apply<kKind>(load(row.x + i), y));
    }
  }
  const int64_t out_stride = p.out_strides[kLast], x_stride = p.x_strides[kLast];
  const int64_t y_stride = p.y_strides[kLast];
  for (; i < end; i += kLanes) {
    const int64_t n = end - i;
    const Vec y = kTwo ? load_run(row.y + i * y_stride, y_stride, n) : Vec{};
    store_run(row.out + i * out_stride, out_stride,
              apply<kKind>(load_run(row.x + i * x_stride, x_stride, n), y), n);
  }
}

// Goes through the rows in their order; without a division for each.
class RowIndex {
 public:
  RowIndex(const ElementwiseParams& p, int64_t row) : p_(p) {
    for (int d = kLast - 1; d >= 0; --d) {
      indices_[d] = row % p.sizes[d];
      row /= p.sizes[d];
      out_ += indices_[d] * p.out_strides[d];
      x_ += indices_[d] * p.x_strides[d];
      y_ += indices_[d] * p.y_strides[d];
    }
  }

  template <typename Out, typename In>
  SPLITSERVE_INLINE ElementRow<Out, In> row() const {
    return {static_cast<Out*>(p_.out) + out_, static_cast<const In*>(p_.x) + x_,
            static_cast<const In*>(p_.y) + y_};
  }

  SPLITSERVE_INLINE void advance() {
    for (int d = kLast - 1; d >= 0; --d) {
      move(d, 1);
      if (++indices_[d] < p_.sizes[d]) return;
      move(d, -p_.sizes[d]);
      indices_[d] = 0;
    }
  }

 private:
  SPLITSERVE_INLINE void move(int d, int64_t steps) {
    out_ += steps * p_.out_strides[d];
    x_ += steps * p_.x_strides[d];
    y_ += steps * p_.y_strides[d];
  }

  const ElementwiseParams& p_;
  int64_t indices_[kLast] = {};
  int64_t out_ = 0, x_ = 0, y_ = 0;
};

template <Elementwise kKind, bool kDense, typename Out, typename In>
void rows(const ElementwiseParams& p) {
  int64_t count = 1;
  for (int d = 0; d < kLast; ++d) count *= p.sizes[d];
  const int64_t size = p.sizes[kLast], pieces = (size + kPiece - 1) / kPiece;
  parallel_for(count * pieces, count * size, [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    RowIndex index(p, begin / pieces);
    int64_t piece = begin % pieces;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = piece * kPiece, last = first + kPiece < size ? first + kPiece : size;
      compute<kKind, kDense>(index.row<Out, In>(), p, first, last);
      if (++piece < pieces) continue;
      piece = 0;
      index.advance();
    }
  });
}

// The same elements in fewer dimensions, where one goes on where another ends.
ElementwiseParams joined(const ElementwiseParams& p) {
  ElementwiseParams q = p;
  int last = kLast;
  const auto put = [&](int to, int from) {
    q.sizes[to] = p.sizes[from];
    q.out_strides[to] = p.out_strides[from];
    q.x_strides[to] = p.x_strides[from];
    q.y_strides[to] = p.y_strides[from];
  };
  for (int d = kLast - 1; d >= 0; --d) {
    const int64_t inner = q.sizes[last];
    if (p.sizes[d] == 1) continue;
    const bool goes_on = p.out_strides[d] == inner * q.out_strides[last] &&
                         p.x_strides[d] == inner * q.x_strides[last] &&
                         p.y_strides[d] == inner * q.y_strides[last];
    if (inner == 1 || !goes_on) {
      if (inner != 1) --last;
      put(last, d);
    } else {
      q.sizes[last] *= p.sizes[d];
    }
  }
  for (int d = 0; d < last; ++d) q.sizes[d] = 1;
  return q;
}

template <Elementwise kKind, typename Out, typename In>
void lay_out(const ElementwiseParams& params) {
  const ElementwiseParams p = joined(params);
  const bool is_dense =
      p.out_strides[kLast] == 1 && p.x_strides[kLast] == 1 && (!takes_two(kKind) || p.y_strides[kLast] == 1);
  is_dense ? rows<kKind, true, Out, In>(p) : rows<kKind, false, Out, In>(p);
}

template <Elementwise kKind>
void by_types(const ElementwiseParams& p) {
  const bool reads_halves = p.dtype == DType::kBFloat16;
  if (p.out_dtype == DType::kBFloat16) {
    reads_halves ? lay_out<kKind, BFloat16, BFloat16>(p) : lay_out<kKind, BFloat16, float>(p);
  } else {
    reads_halves ? lay_out<kKind, float, BFloat16>(p) : lay_out<kKind, float, float>(p);
  }
}

}  // namespace

void elementwise(const ElementwiseParams& params) {
  switch (params.kind) {
    case Elementwise::kCopy:
      return by_types<Elementwise::kCopy>(params);
    case Elementwise::kNegate:
      return by_types<Elementwise::kNegate>(params);
    case Elementwise::kAdd:
      return by_types<Elementwise::kAdd>(params);
    case Elementwise::kSubtract:
      return by_types<Elementwise::kSubtract>(params);
    case Elementwise::kMultiply:
      return by_types<Elementwise::kMultiply>(params);
  }
}

}  // namespace splitserve::SPLITSERVE_ISA
