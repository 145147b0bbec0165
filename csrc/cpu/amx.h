// The tile registers of AMX: 8 of up to 16 rows of 64 bytes, and the product of two that is added to a third.
//
// A product adds to each float of `sum` the products of a row of `left`, up to 32 bfloat16, with a column of
// `right`, whose rows hold pairs of neighbours: those of even and of odd index are summed up from zero, apart
// and in order, then added to each other and to the float. Denormals are taken as zero and made zero.
//
// In assembly: the intrinsics of GCC 12 take no template arguments for registers, and tell the compiler
// neither that a load reads memory nor that the configuration is more than its first bytes.
#pragma once

#include <cstdint>

#include "cpu/vec.h"

#if defined(__AMX_BF16__)
#if defined(SPLITSERVE_EMULATES_AMX)
#include "cpu/emulated_amx.h"
#endif

namespace splitserve::SPLITSERVE_ISA {

inline constexpr int64_t kTileSize = 16;      // rows, and floats or pairs of bfloat16 in a row
inline constexpr int64_t kTileRowBytes = 64;  // the most
inline constexpr int64_t kTileDepth = 32;     // bfloat16 in a row

#if defined(SPLITSERVE_EMULATES_AMX)
template <int kTile>
SPLITSERVE_INLINE void tile_zero() {
  EmulatedTiles::own().zero(kTile);
}
template <int kTile>
SPLITSERVE_INLINE void tile_load(const void* from, int64_t stride) {
  EmulatedTiles::own().load(kTile, from, stride);
}
template <int kTile>
SPLITSERVE_INLINE void tile_store(void* to, int64_t stride) {
  EmulatedTiles::own().store(kTile, to, stride);
}
template <int kSum, int kLeft, int kRight>
SPLITSERVE_INLINE void tile_multiply() {
  EmulatedTiles::own().multiply(kSum, kLeft, kRight);
}
template <int kSum, int kLeft, int kRight>
SPLITSERVE_INLINE void tile_dot() {
  EmulatedTiles::own().dot(kSum, kLeft, kRight);
}
#else
template <int kTile>
SPLITSERVE_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// `stride` in bytes from one row to the next.
template <int kTile>
SPLITSERVE_INLINE void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
SPLITSERVE_INLINE void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

template <int kSum, int kLeft, int kRight>
SPLITSERVE_INLINE void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

// Products of 64 int8 of `left` with unsigned ones of `right`, whose rows hold fours of neighbours; sums are
// int32 and exact.
template <int kSum, int kLeft, int kRight>
SPLITSERVE_INLINE void tile_dot() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}
#endif

// Rows and bytes per row of each register. The layout is the processor's.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  template <int... kTiles>
  void set(int64_t num_rows, int64_t bytes) {
    ((rows[kTiles] = static_cast<uint8_t>(num_rows)), ...);
    ((row_bytes[kTiles] = static_cast<uint16_t>(num_rows > 0 ? bytes : 0)), ...);
  }

  // All registers are zero afterwards.
  void use() const {
#if defined(SPLITSERVE_EMULATES_AMX)
    EmulatedTiles::own().configure(row_bytes, rows);
#else
    asm volatile("ldtilecfg %0" : : "m"(*this) : "memory");
#endif
  }
};
static_assert(sizeof(TileShapes) == 64);

// While it lives, its thread may use tiles; afterwards there is nothing in them that the system would have to
// save whenever the thread is interrupted.
class TileUse {
 public:
  TileUse() = default;
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;
  ~TileUse() {
#if !defined(SPLITSERVE_EMULATES_AMX)
    asm volatile("tilerelease" : : : "memory");
#endif
  }
};

}  // namespace splitserve::SPLITSERVE_ISA

#endif
