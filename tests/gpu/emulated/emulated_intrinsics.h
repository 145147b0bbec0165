// The instructions of csrc/cuda/intrinsics.cuh on emulated threads.
#pragma once

#include <cuda_runtime.h>

#include "common/half.h"

namespace splitserve::cuda {

// The same in every block of a cluster: where rows of matrices for a warpgroup may begin, as on a GPU a
// kernel sees to.
inline char* shared_base(emulated::Block& block) {
  char* memory = block.shared.data();
  return memory +
         (emulated::kSharedAlignment - reinterpret_cast<uintptr_t>(memory) % emulated::kSharedAlignment);
}

inline char* dynamic_shared() { return shared_base(*emulated::self().block); }

// What a GPU demands of the addresses of matrix rows and of copies of 16 bytes.
inline void require_aligned(const void* address, uintptr_t bytes = 16) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) abort();
}

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer));
}

inline int thread_read_anew() { return static_cast<int>(threadIdx.x); }

template <typename Half>
float half_at(uint32_t word, int index) {
  return to_float(Half{static_cast<uint16_t>(word >> (16 * index))});
}

namespace emulated_mma {

struct Operands {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

// a[row][k] is register (row / 8) + 2 * (k / 8) of lane (row % 8) * 4 + (k % 8) / 2, half k % 2.
template <typename Half>
EMULATED_UNSEEN void multiply(void** lanes) {
  const auto at = [lanes](int lane) EMULATED_UNSEEN { return static_cast<const Operands*>(lanes[lane]); };
  float a[16][16], b[16][8];
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 16; ++row) {
      a[row][k] = half_at<Half>(at(row % 8 * 4 + k % 8 / 2)->a[row / 8 + 2 * (k / 8)], k % 2);
    }
    for (int col = 0; col < 8; ++col) b[k][col] = half_at<Half>(at(col * 4 + k % 8 / 2)->b[k / 8], k % 2);
  }
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 8; ++col) {
      float& d = at(row % 8 * 4 + col / 2)->d[row / 8 * 2 + col % 2];
      float sum = 0.0f;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][col];
      d += sum;
    }
  }
}

}  // namespace emulated_mma

template <typename Half>
EMULATED_UNSEEN void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_mma::Operands operands{d, a, {b0, b1}};
  emulated::Warp& warp = *emulated::self().warp;
  warp.slots[emulated::self().lane] = &operands;
  emulated::exchange(warp.barrier, [&warp]() EMULATED_UNSEEN { emulated_mma::multiply<Half>(warp.slots); });
}

template <typename Half>
void mma_from_zero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  std::fill_n(d, 4, 0.0f);
  mma<Half>(d, a, b0, b1);
}

namespace emulated_mma {

struct IntOperands {
  int32_t* d;
  const uint32_t* a;
  uint32_t b[2];
};

inline int32_t byte_at(uint32_t word, int index) { return static_cast<int8_t>(word >> (8 * index)); }

// a[row][k] is register (row / 8) + 2 * (k / 16) of lane (row % 8) * 4 + (k % 16) / 4, byte k % 4.
EMULATED_UNSEEN inline void multiply_int8(void** lanes) {
  const auto at = [lanes](int lane) EMULATED_UNSEEN { return static_cast<const IntOperands*>(lanes[lane]); };
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 8; ++col) {
      int32_t& d = at(row % 8 * 4 + col / 2)->d[row / 8 * 2 + col % 2];
      for (int k = 0; k < 32; ++k) {
        d += byte_at(at(row % 8 * 4 + k % 16 / 4)->a[row / 8 + 2 * (k / 16)], k % 4) *
             byte_at(at(col * 4 + k % 16 / 4)->b[k / 16], k % 4);
      }
    }
  }
}

}  // namespace emulated_mma

EMULATED_UNSEEN inline void mma_int8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_mma::IntOperands operands{d, a, {b0, b1}};
  emulated::Warp& warp = *emulated::self().warp;
  warp.slots[emulated::self().lane] = &operands;
  emulated::exchange(warp.barrier, [&warp]() EMULATED_UNSEEN { emulated_mma::multiply_int8(warp.slots); });
}

// Rounded twice if it is no float, which kernels do not rely on.
template <typename Half>
uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  float d[2];
  for (int i = 0; i < 2; ++i) {
    d[i] = std::fma(half_at<Half>(a, i), half_at<Half>(b, i), half_at<Half>(c, i));
  }
  return pack_pair<Half>(d[0], d[1]);
}
inline uint32_t multiply_pairs(uint32_t a, uint32_t b) { return fma_pair<BFloat16>(a, b, 0x80008000u); }

struct MatrixRow {
  uint16_t elements[8];
  uint32_t* r;
};

// This lane's own access to memory, which the race detector sees.
inline MatrixRow row_at(const void* row, uint32_t* r) {
  require_aligned(row);
  MatrixRow result{{}, r};
  std::copy_n(static_cast<const uint16_t*>(row), 8, result.elements);
  return result;
}

EMULATED_UNSEEN inline void spread_matrices(void** lanes, bool transposed) {
  const auto element = [lanes](int matrix, int i, int j) EMULATED_UNSEEN -> uint32_t {
    return static_cast<const MatrixRow*>(lanes[matrix * 8 + i])->elements[j];
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int i = lane / 4, j = lane % 4 * 2;
    for (int matrix = 0; matrix < 4; ++matrix) {
      const uint32_t low = transposed ? element(matrix, j, i) : element(matrix, i, j);
      const uint32_t high = transposed ? element(matrix, j + 1, i) : element(matrix, i, j + 1);
      static_cast<MatrixRow*>(lanes[lane])->r[matrix] = low | high << 16;
    }
  }
}

EMULATED_UNSEEN inline void load_matrices_of(uint32_t (&r)[4], const void* row, bool transposed) {
  MatrixRow slot = row_at(row, r);
  emulated::Warp& warp = *emulated::self().warp;
  warp.slots[emulated::self().lane] = &slot;
  emulated::exchange(warp.barrier,
                     [&warp, transposed]() EMULATED_UNSEEN { spread_matrices(warp.slots, transposed); });
}

inline void load_matrices(uint32_t (&r)[4], const void* row) { load_matrices_of(r, row, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) { load_matrices_of(r, row, true); }

// A copy arrives when it is waited for, not before. Meanwhile its place holds nothing that anyone may read:
// on a GPU the copy may arrive at once, so who still reads what was there before finds no numbers.
template <typename Word>
void copy_word_async(void* to, const void* from, int bytes, const Word& nothing) {
  require_aligned(to, sizeof(Word));
  require_aligned(from, sizeof(Word));
  *static_cast<Word*>(to) = nothing;
  emulated::self().copies.back().push_back({to, from, bytes, sizeof(Word)});
}
inline void copy_async(void* to, const void* from, int bytes) {
  copy_word_async(to, from, bytes, uint4{~0u, ~0u, ~0u, ~0u});
}
inline void copy_async_8(void* to, const void* from, int bytes) {
  copy_word_async(to, from, bytes, uint2{~0u, ~0u});
}
inline void commit_copies() { emulated::self().copies.emplace_back(); }

template <int kPending>
void wait_for_copies() {
  auto& groups = emulated::self().copies;
  // The last group is open.
  while (static_cast<int>(groups.size()) - 1 > kPending) {
    for (const emulated::AsyncCopy& copy : groups.front()) {
      uint4 value{};
      std::memcpy(&value, copy.from, static_cast<size_t>(copy.bytes));
      if (copy.size == sizeof(uint4)) {
        *static_cast<uint4*>(copy.to) = value;
      } else {
        *static_cast<uint2*>(copy.to) = {value.x, value.y};
      }
    }
    groups.erase(groups.begin());
  }
}

inline uint32_t cluster_rank() { return emulated::self().block->rank; }
inline uint32_t cluster_size() { return emulated::launch_shape().cluster; }
inline void cluster_sync() { emulated::arrive_and_wait(emulated::cluster_barrier()); }

template <typename T>
T* in_block(T* shared, uint32_t rank) {
  char* own = reinterpret_cast<char*>(const_cast<std::remove_const_t<T>*>(shared));
  return reinterpret_cast<T*>(shared_base(emulated::cluster_blocks()[rank]) + (own - dynamic_shared()));
}

}  // namespace splitserve::cuda
