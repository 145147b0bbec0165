// A cached latent and the rotary key beside it as codes, and back. A row has the codes of the latent, those
// of the key, and, of int8, a scale for each: they differ in size. What is read is bfloat16, so that
// attention computes as over a plain cache: the numbers of E4M3 exactly, those of int8 rounded.
#pragma once

#include "cpu/cache_codes.h"

namespace splitserve::SPLITSERVE_ISA {
namespace {

// Elements of a row, both multiples of 32.
struct LatentRow {
  int64_t latent, rotary;

  int64_t width() const { return latent + rotary; }
};

// Codes of `count` elements at `to`, and their scale, if they have one, at `scale`.
template <typename Codes>
SPLITSERVE_INLINE void encode_part(uint8_t* to, uint8_t* scale, const BFloat16* from, int64_t count) {
  const Codes coder(from, count);
  for (int64_t i = 0; i < count; i += kLanes) {
    const ByteVec codes = to_bytes(coder.encode(load(from + i)));
    std::memcpy(to + i, &codes, sizeof codes);
  }
  if constexpr (scale_bytes(Codes::kFormat) > 0) {
    const BFloat16 own = coder.scale();
    std::memcpy(scale, &own, sizeof own);
  }
}

template <typename Codes>
SPLITSERVE_INLINE void decode_part(BFloat16* to, const uint8_t* from, const uint8_t* scale, int64_t count) {
  if constexpr (scale_bytes(Codes::kFormat) == 0) {
    decode<Codes>(from, to, count);
  } else {
    BFloat16 own;
    std::memcpy(&own, scale, sizeof own);
    const Vec factor = as_float(UintVec{} + (static_cast<uint32_t>(own.bits) << 16));
    for (int64_t i = 0; i < count; i += kLanes) store(to + i, Codes::number(load_wide(from + i)) * factor);
  }
}

template <typename Codes>
SPLITSERVE_INLINE void encode_row(uint8_t* to, const BFloat16* from, const LatentRow& row) {
  uint8_t* const scales = to + row.width();
  encode_part<Codes>(to, scales, from, row.latent);
  encode_part<Codes>(to + row.latent, scales + scale_bytes(Codes::kFormat), from + row.latent, row.rotary);
}

template <typename Codes>
SPLITSERVE_INLINE void decode_row(BFloat16* to, const uint8_t* from, const LatentRow& row) {
  const uint8_t* const scales = from + row.width();
  decode_part<Codes>(to, from, scales, row.latent);
  decode_part<Codes>(to + row.latent, from + row.latent, scales + scale_bytes(Codes::kFormat), row.rotary);
}

}  // namespace
}  // namespace splitserve::SPLITSERVE_ISA
