// How rows lie in shared memory for the operands of matrix instructions: each row's 64 or 128 bytes of a
// stage together, its pieces of 16 bytes in another order from row to row, so that the same piece of 8 rows
// meets different banks: the PTX ISA's swizzling modes of 64 and 128 bytes. What holds them begins at a
// multiple of kLinesAlignment.
#pragma once

namespace splitserve::cuda {

inline constexpr int kLinesAlignment = 1024;

template <int kBytes>
constexpr int line_place(int row, int piece) {
  static_assert(kBytes == 64 || kBytes == 128);
  return row * kBytes + (kBytes == 128 ? piece ^ row % 8 : piece ^ row / 2 % 4) * 16;
}

}  // namespace splitserve::cuda
