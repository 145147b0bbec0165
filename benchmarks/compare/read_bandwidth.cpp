// How fast can all cores together read memory? Prints GB/s: read_bandwidth MIB THREADS PASSES
//
// Two ways of reading are tried, with and without prefetching, and the better median is printed: a limit that
// better code could beat would be none.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

// The compiler makes of this what the processor has: one 512-bit register, or two or four smaller ones.
using Vec = uint64_t __attribute__((vector_size(64)));
constexpr size_t kUnroll = 8;
constexpr size_t kStride = kUnroll * sizeof(Vec);
constexpr size_t kPrefetchBytes = 4096;
constexpr size_t kHugePage = size_t{1} << 21;

template <bool kPrefetch>
uint64_t read(const char* begin, const char* end) {
  Vec sums[kUnroll] = {};
  for (const char* p = begin; p < end; p += kStride) {
    for (size_t i = 0; i < kUnroll; ++i) {
      if constexpr (kPrefetch) __builtin_prefetch(p + kPrefetchBytes + i * sizeof(Vec));
      sums[i] ^= *reinterpret_cast<const Vec*>(p + i * sizeof(Vec));
    }
  }
  uint64_t result = 0;
  for (const Vec& sum : sums) result ^= sum[0] ^ sum[1] ^ sum[7];
  return result;
}

template <bool kPrefetch>
double median_gb_per_s(const char* data, size_t size, int threads, int passes) {
  std::vector<double> rates;
  volatile uint64_t sink = 0;
  for (int pass = 0; pass < passes; ++pass) {
    auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> readers;
    std::vector<uint64_t> results(threads);
    size_t share = size / threads / kStride * kStride;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back(
          [=, &results] { results[i] = read<kPrefetch>(data + i * share, data + (i + 1) * share); });
    }
    for (std::thread& reader : readers) reader.join();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    for (uint64_t result : results) sink = sink ^ result;
    rates.push_back(static_cast<double>(share * threads) / took.count() / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  size_t size = static_cast<size_t>(std::atol(argv[1])) << 20;
  int threads = std::atoi(argv[2]);
  int passes = std::atoi(argv[3]);
  if (size == 0 || size % kHugePage != 0 || threads < 1 || passes < 1) return 2;
  auto* data = static_cast<char*>(std::aligned_alloc(kHugePage, size));
  if (data == nullptr) return 1;
  madvise(data, size, MADV_HUGEPAGE);
  std::memset(data, 1, size);
  double plain = median_gb_per_s<false>(data, size, threads, passes);
  double ahead = median_gb_per_s<true>(data, size, threads, passes);
  std::printf("%.3f\n", std::max(plain, ahead));
}
