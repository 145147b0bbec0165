// Copies whole KV blocks between the pool and pinned host memory.
//
// Element e of a piece is only ever copied to element e of the same piece of other places. So a thread that
// owns a few words of a piece can make all moves of them one after the other, and no thread waits for
// another.
#include <algorithm>

#include "cuda/chunk.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace splitserve::cuda {
namespace {

// Moves of one launch. They travel as kernel arguments, so no memory has to outlive the call.
constexpr int kMaxMoves = 256;
constexpr int kThreads = 256;
// Words that a thread has in flight.
constexpr uint32_t kWords = 8;
constexpr uint32_t kTile = kThreads * kWords;
// What crosses the bus needs bandwidth times latency in flight: 64 GB/s and 2 us are 128 KB, and a thread
// block has 32. It runs beside the kernels of a step, which keep all but these few multiprocessors.
constexpr int64_t kBusBlocks = 8;
// Within the device's memory it is 4.8 TB/s and 0.8 us, or 3.8 MB, and soon over.
constexpr int64_t kMemoryBlocks = 256;

struct Moves {
  int32_t from[kMaxMoves];
  int32_t to[kMaxMoves];
  int count;
};

// Word is what one access copies. A division of 64 bits would cost more than a short list of moves.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    move_words(Places places, Moves moves, uint32_t num_words, uint32_t words_per_piece) {
  for (uint32_t tile = blockIdx.x * kTile; tile < num_words; tile += gridDim.x * kTile) {
    uint32_t piece[kWords], word[kWords];
    bool is_there[kWords];
#pragma unroll
    for (uint32_t w = 0; w < kWords; ++w) {
      const uint32_t i = tile + w * kThreads + threadIdx.x;
      piece[w] = i / words_per_piece, word[w] = i % words_per_piece, is_there[w] = i < num_words;
    }
    for (int move = 0; move < moves.count; ++move) {
      const int32_t from = moves.from[move], to = moves.to[move];
      if (from == to) continue;
      Word held[kWords]{};
#pragma unroll
      for (uint32_t w = 0; w < kWords; ++w) {
        if (is_there[w]) held[w] = reinterpret_cast<const Word*>(places.at(from, piece[w]))[word[w]];
      }
#pragma unroll
      for (uint32_t w = 0; w < kWords; ++w) {
        if (is_there[w]) reinterpret_cast<Word*>(places.at(to, piece[w]))[word[w]] = held[w];
      }
    }
  }
}

// The next moves from `begin` on, as many as one launch takes.
Moves moves_from(const MoveParams& p, int64_t begin) {
  Moves moves{};
  for (; moves.count < kMaxMoves && begin + moves.count < p.num_moves; ++moves.count) {
    moves.from[moves.count] = static_cast<int32_t>(p.from[begin + moves.count]);
    moves.to[moves.count] = static_cast<int32_t>(p.to[begin + moves.count]);
  }
  return moves;
}

bool cross_the_bus(const Moves& moves, int64_t num_blocks) {
  for (int i = 0; i < moves.count; ++i) {
    if (moves.from[i] >= num_blocks || moves.to[i] >= num_blocks) return true;
  }
  return false;
}

template <typename Word>
void move_all(const MoveParams& p, cudaStream_t stream) {
  const int64_t per_piece = p.piece_bytes / static_cast<int64_t>(sizeof(Word)), words = p.pieces * per_piece;
  if (words > INT32_MAX) check(cudaErrorInvalidConfiguration, "move_blocks: a block of more than 2^31 words");
  for (int64_t begin = 0; begin < p.num_moves; begin += kMaxMoves) {
    const Moves moves = moves_from(p, begin);
    const int64_t most = cross_the_bus(moves, p.places.num_blocks) ? kBusBlocks : kMemoryBlocks;
    const LaunchShape shape{std::min(ceil_div(words, kTile), most), dim3(kThreads)};
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
