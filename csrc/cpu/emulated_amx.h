// The tile registers of AMX in memory, for tests of kernels that use them on processors that have AVX-512
// BF16 and no AMX: the same operations with the same bits, slowly.
#pragma once

#include "cpu/vec.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// A thread's.
struct EmulatedTiles {
  static constexpr int kCount = 8, kRows = 16, kRowBytes = 64, kLanesOfRow = kRowBytes / 4;
  struct Tile {
    alignas(64) char bytes[kRows][kRowBytes];
    int rows, row_bytes;

    const char* four(int row, int place) const { return bytes[row] + 4 * place; }
  };

  Tile tiles[kCount];

  static EmulatedTiles& own() {
    static thread_local EmulatedTiles tiles{};
    return tiles;
  }

  void configure(const uint16_t* row_bytes, const uint8_t* rows) {
    for (int i = 0; i < kCount; ++i) {
      std::memset(tiles[i].bytes, 0, sizeof tiles[i].bytes);
      tiles[i].rows = rows[i];
      tiles[i].row_bytes = row_bytes[i];
    }
  }
  void zero(int tile) { std::memset(tiles[tile].bytes, 0, sizeof tiles[tile].bytes); }
  void load(int tile, const void* from, int64_t stride) {
    Tile& own = tiles[tile];
    zero(tile);
    for (int i = 0; i < own.rows; ++i)
      std::memcpy(own.bytes[i], static_cast<const char*>(from) + i * stride,
                  static_cast<size_t>(own.row_bytes));
  }
  void store(int tile, void* to, int64_t stride) const {
    const Tile& own = tiles[tile];
    for (int i = 0; i < own.rows; ++i)
      std::memcpy(static_cast<char*>(to) + i * stride, own.bytes[i], static_cast<size_t>(own.row_bytes));
  }

  // TDPBF16PS; Intel's manual, volume 2.
  void multiply(int sum, int left, int right) {
    // Denormals are zero, and made zero.
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    for (int row = 0; row < tiles[sum].rows; ++row) {
      Vec even{}, odd{};
      for (int pair = 0; pair < tiles[left].row_bytes / 4; ++pair) {
        const UintVec x = UintVec{} + read<uint32_t>(tiles[left].four(row, pair));
        const UintVec w = read<UintVec>(tiles[right].bytes[pair]);
        even = _mm512_fmadd_ps(as_float(x << 16), as_float(w << 16), even);
        odd = _mm512_fmadd_ps(as_float(x & 0xffff0000u), as_float(w & 0xffff0000u), odd);
      }
      add<Vec>(sum, row, even + odd);
    }
    _mm_setcsr(mode);
  }

  // TDPBSUD.
  void dot(int sum, int left, int right) {
    for (int row = 0; row < tiles[sum].rows; ++row) {
      IntVec products{};
      for (int four = 0; four < tiles[left].row_bytes / 4; ++four) {
        for (int i = 0; i < 4; ++i) {
          const int x = static_cast<int8_t>(tiles[left].four(row, four)[i]);
          for (int lane = 0; lane < kLanesOfRow; ++lane)
            products[lane] += x * static_cast<uint8_t>(tiles[right].four(four, lane)[i]);
        }
      }
      add<IntVec>(sum, row, products);
    }
  }

 private:
  template <typename T>
  static T read(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  // Of the lanes that a row of `tile` has.
  template <typename T>
  void add(int tile, int row, T products) {
    const T sums = read<T>(tiles[tile].bytes[row]) + products;
    std::memcpy(tiles[tile].bytes[row], &sums, static_cast<size_t>(tiles[tile].row_bytes));
  }
};

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
