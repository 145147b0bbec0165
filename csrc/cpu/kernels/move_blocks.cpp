// Copies whole KV blocks between the pool that steps compute in and the store that only holds them.
#include <cstring>

#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace splitserve::SPLITSERVE_ISA {

// A piece is copied from and to the same piece of other places only, so pieces are independent, and the moves
// of each one run in their order on one thread.
void move_blocks(const MoveParams& p) {
  parallel_for(p.pieces, p.num_moves * p.pieces * p.piece_bytes / 4, [&p](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      for (int64_t i = 0; i < p.num_moves; ++i) {
        if (p.from[i] == p.to[i]) continue;
        std::memcpy(p.places.at(p.to[i], piece), p.places.at(p.from[i], piece),
                    static_cast<size_t>(p.piece_bytes));
      }
    }
  });
}

}  // namespace splitserve::SPLITSERVE_ISA
