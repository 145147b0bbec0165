// Chooses the thread blocks of the kernels that work on rows of logits.
#include "cuda/vocab_launch.h"

namespace splitserve::cuda {

VocabLaunch vocab_launch(int64_t rows, int vocab) {
  // The largest cluster that every device with clusters can run; a short row is not worth the agreement.
  constexpr unsigned kCluster = 8;
  constexpr int kShortVocab = 8192;
  const bool has_clusters = device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
  const unsigned cluster = has_clusters && vocab > kShortVocab ? kCluster : 1;
  const int64_t slice_bytes = int64_t{4} * VocabRow::slice_size(vocab, static_cast<int>(cluster));
  const int64_t limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const bool is_cached = static_cast<int64_t>(sizeof(VocabMemory)) + slice_bytes <= limit;
  const int64_t shared_bytes = static_cast<int64_t>(sizeof(VocabMemory)) + (is_cached ? slice_bytes : 0);
  return {{rows * cluster, kVocabThreads, shared_bytes, cluster}, is_cached};
}

}  // namespace splitserve::cuda
