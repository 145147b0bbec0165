// Embedding lookup: copies one weight row per token.
#include "cuda/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/rows.cuh"

namespace splitserve::cuda {
namespace {

// A NaN in every dtype. The host cannot see the ids, so a token that is none makes its own row NaN, which the
// sampler reports as that row's error.
constexpr Chunk kNaN{{~0u, ~0u, ~0u, ~0u}};

// T only has the element's size.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(256) copy_rows(EmbeddingParams p, uint32_t blocks_per_row) {
  const int64_t token = row_index(blocks_per_row), id = p.token_ids[token];
  const int size = static_cast<int>(p.hidden);
  const bool is_token = id >= 0 && id < p.vocab;
  const T* row = static_cast<const T*>(p.weight) + (is_token ? id : 0) * p.weight_stride;
  T* out = static_cast<T*>(p.out) + token * p.out_stride;
  Chunk chunks[kChunksPerThread];
#pragma unroll
  for (int j = 0; j < kChunksPerThread; ++j) {
    chunks[j] = is_token ? load_chunk<kAligned>(row, chunk_begin<T>(blocks_per_row, j), size) : kNaN;
  }
#pragma unroll
  for (int j = 0; j < kChunksPerThread; ++j) {
    store_chunk<kAligned>(out, chunk_begin<T>(blocks_per_row, j), size, chunks[j]);
  }
}

}  // namespace

void embedding(const EmbeddingParams& p, cudaStream_t stream) {
  const int64_t element = dtype_bytes(p.dtype);
  const RowShape shape = row_shape(p.tokens, p.hidden, element);
  const bool aligned = Alignment()
                           .add(p.out)
                           .add(p.weight)
                           .add_bytes(p.out_stride * element)
                           .add_bytes(p.weight_stride * element)
                           .add_bytes(p.hidden * element)
                           .is_aligned();
  with_alignment(aligned, [&]<bool kAligned>() {
    auto* kernel = element == 2 ? copy_rows<uint16_t, kAligned> : copy_rows<uint32_t, kAligned>;
    launch("embedding", kernel, shape.launch, stream, p, shape.blocks_per_row);
  });
}

}  // namespace splitserve::cuda
