// What csrc/common computes on every device, over arrays, and what the emulated GPU is; for ctypes.
#include <cuda_runtime.h>

#include "common/half.h"
#include "common/noise.h"
#include "common/select_key.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace splitserve {

template <typename Half>
void widen(float* out, const uint16_t* in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_float(Half{in[i]});
}

template <typename Half>
void narrow(uint16_t* out, const float* in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = to<Half>(in[i]).bits;
}

EXPORT void widen_bfloat16(float* out, const uint16_t* in, int64_t n) { widen<BFloat16>(out, in, n); }
EXPORT void widen_float16(float* out, const uint16_t* in, int64_t n) { widen<Float16>(out, in, n); }
EXPORT void narrow_bfloat16(uint16_t* out, const float* in, int64_t n) { narrow<BFloat16>(out, in, n); }
EXPORT void narrow_float16(uint16_t* out, const float* in, int64_t n) { narrow<Float16>(out, in, n); }

EXPORT void set_compute_capability(int32_t major) { emulated::compute_capability() = major; }

EXPORT void order_keys(uint32_t* out, const float* in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = order_key(in[i]);
}

EXPORT void floats_of_order_keys(float* out, const uint32_t* in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = from_order_key(in[i]);
}

EXPORT void preference_keys(uint64_t* out, const float* in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = preference_key(in[i], static_cast<int32_t>(i));
}

EXPORT void noise_words(uint32_t* out, uint64_t seed, uint64_t position, int64_t count) {
  const NoiseKey key = noise_key(seed, position);
  for (int64_t i = 0; i < count; ++i) out[i] = noise_bits(key, static_cast<uint32_t>(i));
}

}  // namespace splitserve
