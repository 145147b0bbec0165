// Checks and binding of move_blocks.
#include "common/move_blocks.h"

#include "common/device_args.h"

namespace splitserve {
namespace {

Places places_of(const TensorView& pool, const TensorView& host, int64_t element) {
  Places places{};
  places.pool = static_cast<char*>(pool.data_ptr());
  places.host = host.size(0) > 0 ? static_cast<char*>(reachable_host_memory(host.data_ptr())) : nullptr;
  SPLITSERVE_CHECK_VALUE(places.host != nullptr || host.size(0) == 0, "host: must be pinned memory");
  places.num_blocks = pool.size(1);
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

// The CPU offload tier, which may say of itself that it is pinned.
Arg host_arg(const TensorView& host) {
  const Arg arg(host, "host", kHasFloat16);
  if (host.device().device_type != kDLCUDAHost) arg.on(kDLCPU);
  return arg;
}

void move_blocks(TensorView pool, TensorView host, TensorView moves_from, TensorView moves_to) {
  const DeviceArgs args(pool, "pool");
  const int64_t element = args(pool, "pool").rank(3).rows_contiguous().cache_element_bytes();
  host_arg(host).type_of(pool).rank(3).size(1, pool.size(0)).size(2, pool.size(2)).rows_contiguous();
  MoveParams params{};
  cpu_arg(moves_from, "moves_from").rank(1);
  params.num_moves = moves_from.size(0);
  params.from = cpu_arg(moves_from, "moves_from").indices(params.num_moves);
  params.to = cpu_arg(moves_to, "moves_to").indices(params.num_moves);
  const int64_t num_places = pool.size(1) + host.size(0);
  check_places(params.from, params.num_moves, num_places, "moves_from");
  check_places(params.to, params.num_moves, num_places, "moves_to");
  params.places = places_of(pool, host, element);
  params.pieces = pool.size(0);
  params.piece_bytes = pool.size(2) * element;
  SPLITSERVE_RUN(move_blocks, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(move_blocks, splitserve::move_blocks);
