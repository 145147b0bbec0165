// Writes keys and values into a paged cache of codes, a warp each head's row.
#include "cuda/cache_codes.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace splitserve::cuda {
namespace {

constexpr int kMaxWarps = 8;
// Of a lane, neighbours that are stored as one word.
constexpr int kLaneCodes = 4;

__device__ inline uint32_t greatest_of_warp(uint32_t bits) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    bits = max(bits, __shfl_xor_sync(kWholeWarp, bits, offset));
  }
  return bits;
}

// `scale`: where that of the row belongs; unused for codes without scales.
template <typename Codes>
__device__ void write_row(char* target, char* scale, const BFloat16* source, int head_dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  uint32_t greatest = 0;
  if constexpr (std::same_as<Codes, Int8Codes>) {
    for (int i = lane; i < head_dim; i += kWarpSize) {
      greatest = max(greatest, magnitude_bits(to_float(source[i])));
    }
    greatest = greatest_of_warp(greatest);
  }
  const Codes codes(greatest);
  for (int i = lane * kLaneCodes; i < head_dim; i += kWarpSize * kLaneCodes) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < kLaneCodes; ++j) word |= codes.encode(to_float(source[i + j])) << (8 * j);
    *reinterpret_cast<uint32_t*>(target + i) = word;
  }
  if constexpr (std::same_as<Codes, Int8Codes>) {
    if (lane == 0) *reinterpret_cast<uint16_t*>(scale) = codes.scale();
  }
}

// A thread block takes a token.
template <typename Codes>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) write_codes(KvWriteParams p) {
  const int64_t token = blockIdx.x, slot = p.slot_mapping[token];
  if (slot < 0 || slot >= p.num_slots) return;
  const int64_t block = slot / p.block_size, place = slot % p.block_size;
  for (int64_t row = threadIdx.x / kWarpSize; row < 2 * p.k.heads; row += blockDim.x / kWarpSize) {
    const bool is_value = row >= p.k.heads;
    const int64_t head = is_value ? row - p.k.heads : row;
    const HeadRows& rows = is_value ? p.v : p.k;
    const KvSlots& cache = is_value ? p.v_cache : p.k_cache;
    char* begin = static_cast<char*>(cache.data) + block * cache.block_stride + head * cache.head_stride;
    const BFloat16* source =
        static_cast<const BFloat16*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
    write_row<Codes>(begin + codes_at(place, p.head_dim), begin + scale_at(place, p.head_dim, p.block_size),
                     source, static_cast<int>(p.head_dim));
  }
}

}  // namespace

void kv_write_codes(const KvWriteParams& p, cudaStream_t stream) {
  const int64_t warps = 2 * p.k.heads < kMaxWarps ? 2 * p.k.heads : kMaxWarps;
  const LaunchShape shape{p.tokens, static_cast<unsigned>(warps * kWarpSize)};
  auto* kernel = p.format == CacheFormat::kInt8 ? write_codes<Int8Codes> : write_codes<Fp8Codes>;
  launch("kv_write", kernel, shape, stream, p);
}

}  // namespace splitserve::cuda
