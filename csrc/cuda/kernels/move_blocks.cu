// Copies whole KV blocks between the pool and pinned host memory.
//
// Element e of a piece is only ever copied to element e of the same piece of other places. So a thread that
// owns a few bytes of a piece can make all moves of them one after the other, and no thread waits for
// another.
#include "cuda/chunk.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

// Moves of one launch. They travel as kernel arguments, so no memory has to outlive the call.
constexpr int kMaxMoves = 256;
constexpr int kThreads = 256;
// Enough threads to keep either memory or the bus busy; each takes more words if there are more.
constexpr int64_t kMaxBlocks = 1024;

struct Moves {
  int32_t from[kMaxMoves];
  int32_t to[kMaxMoves];
  int count;
};

// Word is what one access copies. A division of 64 bits would cost more than a short list of moves.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    move_words(Places places, Moves moves, uint32_t num_words, uint32_t words_per_piece) {
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < num_words; i += gridDim.x * kThreads) {
    const uint32_t piece = i / words_per_piece, word = i % words_per_piece;
    for (int move = 0; move < moves.count; ++move) {
      const char* from = places.at(moves.from[move], piece);
      char* to = places.at(moves.to[move], piece);
      if (from != to) reinterpret_cast<Word*>(to)[word] = reinterpret_cast<const Word*>(from)[word];
    }
  }
}

template <typename Word>
void move_all(const MoveParams& p, cudaStream_t stream) {
  const int64_t per_piece = p.piece_bytes / static_cast<int64_t>(sizeof(Word)), words = p.pieces * per_piece;
  if (words > INT32_MAX) check(cudaErrorInvalidConfiguration, "move_blocks: a block of more than 2^31 words");
  const int64_t blocks = ceil_div(words, kThreads);
  const LaunchShape shape{blocks < kMaxBlocks ? blocks : kMaxBlocks, dim3(kThreads)};
  for (int64_t begin = 0; begin < p.num_moves; begin += kMaxMoves) {
    Moves moves{};
    for (; moves.count < kMaxMoves && begin + moves.count < p.num_moves; ++moves.count) {
      moves.from[moves.count] = static_cast<int32_t>(p.from[begin + moves.count]);
      moves.to[moves.count] = static_cast<int32_t>(p.to[begin + moves.count]);
    }
    launch("move_blocks", move_words<Word>, shape, stream, p.places, moves, static_cast<uint32_t>(words),
           static_cast<uint32_t>(per_piece));
  }
}

}  // namespace

void move_blocks(const MoveParams& p, cudaStream_t stream) {
  const Places& places = p.places;
  Alignment alignment;
  alignment.add(places.pool).add(places.host).add_bytes(p.piece_bytes);
  for (int64_t stride : {places.pool_piece, places.pool_block, places.host_piece, places.host_block}) {
    alignment.add_bytes(stride);
  }
  if (alignment.is_aligned()) {
    move_all<Chunk>(p, stream);
  } else {
    move_all<uint16_t>(p, stream);
  }
}

}  // namespace splitserve::cuda
