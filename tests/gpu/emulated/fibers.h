// The threads of a thread block cluster as fibers of one CPU thread, switched where they wait for each other.
//
// A round lets every thread run once, up to its next wait, in an order drawn anew for each round: code that
// lacks a barrier gives other results than it should. A launch in which nobody can go on ends the process
// with a message.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

// What hands values from lane to lane is no access of the kernel to memory; the race detector must not see
// it.
#define EMULATED_UNSEEN __attribute__((no_sanitize("thread")))

namespace emulated {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

// Threads that wait for each other. The last one to arrive may do work for all of them.
struct Barrier {
  int members = 0;
  int arrived = 0;
  uint64_t generation = 0;
  char places[2] = {};  // names for the race detector, of even and odd generations
};

inline constexpr int kWarpSize = 32;

struct Warp {
  Barrier barrier;
  void* slots[kWarpSize] = {};
};

inline constexpr size_t kSharedAlignment = 1024;

struct Block {
  Index3 index;
  unsigned rank = 0;  // in its cluster
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<char> shared;
  int votes = 0;
};

struct AsyncCopy {
  void* to;
  const void* from;
  int bytes;  // of `size`, the rest is zero
  int size;
};

struct Thread {
  Index3 index;
  int lane = 0;
  Block* block = nullptr;
  Warp* warp = nullptr;
  // Copies that have not arrived, by committed group; the last entry is the open group.
  std::vector<std::vector<AsyncCopy>> copies{1};
};

struct Launch {
  Index3 grid, threads;
  unsigned cluster = 1;  // thread blocks along x that run together
  int64_t shared_bytes = 0;
};

// The thread that runs, its cluster's blocks, and the shape of the launch.
Thread& self();
std::vector<Block>& cluster_blocks();
const Launch& launch_shape();
Barrier& cluster_barrier();

// Runs `last` once all members have arrived, on the thread that arrives last, then lets all go on.
void arrive_and_wait(Barrier& barrier, const std::function<void()>& last = {});
// The same for what threads do in step without telling each other of memory: shuffles and products of
// matrices.
void exchange(Barrier& barrier, const std::function<void()>& last);

void run(const Launch& launch, const std::function<void()>& kernel);

}  // namespace emulated
