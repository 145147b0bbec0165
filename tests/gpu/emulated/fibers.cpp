// Switches between the emulated threads; see fibers.h.
#include "fibers.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <memory>

#if defined(EMULATED_RACES)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulated {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

// What a thread knows of the others' accesses, for the race detector: barriers alone tell it.
#if defined(EMULATED_RACES)
class History {
 public:
  History() : id_(__tsan_create_fiber(0)) {}
  ~History() { __tsan_destroy_fiber(id_); }
  History(const History&) = delete;
  History& operator=(const History&) = delete;
  void* id() const { return id_; }

 private:
  void* id_;
};
void* current_history() { return __tsan_get_current_fiber(); }
// With `tells` it is known there what was done here so far.
void switch_history(void* to, bool tells) {
  __tsan_switch_to_fiber(to, tells ? 0 : __tsan_switch_to_fiber_no_sync);
}
void tell(char* place) { __tsan_release(place); }
void learn(char* place) { __tsan_acquire(place); }
#else
struct History {
  void* id() const { return nullptr; }
};
void* current_history() { return nullptr; }
void switch_history(void*, bool) {}
void tell(char*) {}
void learn(char*) {}
#endif

struct Fiber {
  Thread thread;
  ucontext_t context;
  jmp_buf state;
  bool started = false;
  bool done = false;
  History history;
};

struct Machine {
  Launch launch;
  std::vector<Block> blocks;
  Barrier cluster;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<char[]>> stacks;
  const std::function<void()>* kernel = nullptr;
  Fiber* running = nullptr;
  jmp_buf scheduler;
  void* scheduler_history = nullptr;
  uint64_t events = 0;  // releases of barriers and ends of threads
  uint64_t random = 88172645463325252ull;
};

Machine machine;

uint64_t next_random() {
  machine.random ^= machine.random << 13;
  machine.random ^= machine.random >> 7;
  return machine.random ^= machine.random << 17;
}

// ucontext makes the stacks; setjmp switches, which needs no system call.
void enter() {
  (*machine.kernel)();
  machine.running->done = true;
  switch_history(machine.scheduler_history, true);
  _longjmp(machine.scheduler, 1);
}

void leave(Barrier& barrier) {
  --barrier.members;
  if (barrier.members > 0 && barrier.arrived == barrier.members) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
}

void resume(Fiber& fiber) {
  machine.running = &fiber;
  if (_setjmp(machine.scheduler) == 0) {
    switch_history(fiber.history.id(), false);
    if (fiber.started) _longjmp(fiber.state, 1);
    fiber.started = true;
    setcontext(&fiber.context);
  }
  if (!fiber.done) return;
  ++machine.events;
  leave(fiber.thread.warp->barrier);
  leave(fiber.thread.block->barrier);
  leave(machine.cluster);
}

void yield() {
  if (_setjmp(machine.running->state) != 0) return;
  switch_history(machine.scheduler_history, false);
  _longjmp(machine.scheduler, 1);
}

void run_cluster() {
  size_t left = machine.fibers.size();
  while (left > 0) {
    const uint64_t events = machine.events, random = next_random();
    const size_t count = machine.fibers.size(), offset = random % count;
    left = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t index = (random >> 40 & 1 ? offset + i : offset + count - i) % count;
      if (!machine.fibers[index]->done) resume(*machine.fibers[index]);
      left += machine.fibers[index]->done ? 0 : 1;
    }
    if (left > 0 && events == machine.events) {
      fprintf(stderr, "emulated GPU: %zu threads wait for others that never come\n", left);
      abort();
    }
  }
}

void prepare_block(Block& block, Index3 index, unsigned rank) {
  const Launch& launch = machine.launch;
  const int threads = static_cast<int>(launch.threads.x * launch.threads.y * launch.threads.z);
  block.index = index;
  block.rank = rank;
  block.barrier.members = threads;
  block.warps.assign(static_cast<size_t>((threads + kWarpSize - 1) / kWarpSize), {});
  // Not a number in every type: what nobody wrote must not look like data.
  block.shared.assign(static_cast<size_t>(launch.shared_bytes) + kSharedAlignment, static_cast<char>(0xff));
}

void add_threads(Block& block) {
  const Launch& launch = machine.launch;
  for (int i = 0; i < block.barrier.members; ++i) {
    auto fiber = std::make_unique<Fiber>();
    const auto id = static_cast<unsigned>(i);
    fiber->thread.index = {id % launch.threads.x, id / launch.threads.x % launch.threads.y,
                           id / launch.threads.x / launch.threads.y};
    fiber->thread.lane = i % kWarpSize;
    fiber->thread.block = &block;
    fiber->thread.warp = &block.warps[static_cast<size_t>(i / kWarpSize)];
    ++fiber->thread.warp->barrier.members;
    machine.fibers.push_back(std::move(fiber));
  }
}

void prepare_stacks() {
  while (machine.stacks.size() < machine.fibers.size()) {
    machine.stacks.push_back(std::unique_ptr<char[]>(new char[kStackBytes]));
  }
  for (size_t i = 0; i < machine.fibers.size(); ++i) {
    ucontext_t& context = machine.fibers[i]->context;
    getcontext(&context);
    context.uc_stack.ss_sp = machine.stacks[i].get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
  }
}

}  // namespace

Thread& self() { return machine.running->thread; }
std::vector<Block>& cluster_blocks() { return machine.blocks; }
const Launch& launch_shape() { return machine.launch; }
Barrier& cluster_barrier() { return machine.cluster; }

void exchange(Barrier& barrier, const std::function<void()>& last) {
  if (++barrier.arrived == barrier.members) {
    if (last) last();
    barrier.arrived = 0;
    ++barrier.generation;
    ++machine.events;
    return;
  }
  const uint64_t generation = barrier.generation;
  while (barrier.generation == generation) yield();
}

void arrive_and_wait(Barrier& barrier, const std::function<void()>& last) {
  // Who is told of this generation must not learn what others do after it.
  char* place = &barrier.places[barrier.generation % 2];
  tell(place);
  exchange(barrier, last);
  learn(place);
}

void run(const Launch& launch, const std::function<void()>& kernel) {
  machine.launch = launch;
  machine.kernel = &kernel;
  machine.scheduler_history = current_history();
  for (unsigned z = 0; z < launch.grid.z; ++z) {
    for (unsigned y = 0; y < launch.grid.y; ++y) {
      for (unsigned x = 0; x < launch.grid.x; x += launch.cluster) {
        machine.fibers.clear();
        machine.blocks.assign(launch.cluster, {});
        for (unsigned rank = 0; rank < launch.cluster; ++rank) {
          prepare_block(machine.blocks[rank], {x + rank, y, z}, rank);
        }
        // Threads know of what was done before they were made.
        for (Block& block : machine.blocks) add_threads(block);
        machine.cluster = {};
        machine.cluster.members = static_cast<int>(machine.fibers.size());
        prepare_stacks();
        run_cluster();
      }
    }
  }
}

}  // namespace emulated
