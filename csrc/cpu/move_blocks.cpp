// Copies whole KV blocks between the pool that steps compute in and the store that only holds them.
#include <cstring>

#include "common/check.h"
#include "cpu/parallel.h"

namespace splitserve {
namespace {

// Where the pieces of each place lie: places below num_blocks are the pool's blocks, the others the host's.
struct Places {
  char *pool, *host;
  int64_t num_blocks, num_places;
  int64_t pool_piece, pool_block, host_piece, host_block;  // strides in bytes

  char* at(int64_t place, int64_t piece) const {
    return place < num_blocks ? pool + piece * pool_piece + place * pool_block
                              : host + (place - num_blocks) * host_block + piece * host_piece;
  }
};

Places places_of(const TensorView& pool, const TensorView& host) {
  const DType dtype = cpu_arg(pool, "pool").rank(3).rows_contiguous().activation();
  cpu_arg(host, "host")
      .activation(dtype)
      .rank(3)
      .size(1, pool.size(0))
      .size(2, pool.size(2))
      .rows_contiguous();
  const int64_t element = dtype_bytes(dtype);
  Places places{};
  places.pool = static_cast<char*>(pool.data_ptr());
  places.host = static_cast<char*>(host.data_ptr());
  places.num_blocks = pool.size(1);
  places.num_places = pool.size(1) + host.size(0);
  places.pool_piece = pool.stride(0) * element;
  places.pool_block = pool.stride(1) * element;
  places.host_piece = host.stride(1) * element;
  places.host_block = host.stride(0) * element;
  return places;
}

void check_places(const IndexArray& moves, int64_t num_moves, int64_t num_places, const char* name) {
  for (int64_t i = 0; i < num_moves; ++i) {
    SPLITSERVE_CHECK_VALUE(moves[i] >= 0 && moves[i] < num_places,
                           name << ": " << moves[i] << " is outside the " << num_places << " places");
  }
}

void move_blocks(TensorView pool, TensorView host, TensorView moves_from, TensorView moves_to) {
  const Places places = places_of(pool, host);
  cpu_arg(moves_from, "moves_from").rank(1);
  const int64_t num_moves = moves_from.size(0);
  const IndexArray from = cpu_arg(moves_from, "moves_from").indices(num_moves);
  const IndexArray to = cpu_arg(moves_to, "moves_to").indices(num_moves);
  check_places(from, num_moves, places.num_places, "moves_from");
  check_places(to, num_moves, places.num_places, "moves_to");
  const int64_t pieces = pool.size(0), elements = pool.size(2);
  const auto bytes = static_cast<size_t>(elements * dtype_bytes(cpu_arg(pool, "pool").activation()));
  // A piece is copied from and to the same piece of other places only, so pieces are independent, and the
  // moves of each one run in their order on one thread.
  host::parallel_for(pieces, num_moves * pieces * elements, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      for (int64_t i = 0; i < num_moves; ++i) {
        if (from[i] != to[i]) std::memcpy(places.at(to[i], piece), places.at(from[i], piece), bytes);
      }
    }
  });
}

}  // namespace
}  // namespace splitserve

TVM_FFI_DLL_EXPORT_TYPED_FUNC(move_blocks, splitserve::move_blocks);
