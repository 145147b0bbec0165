// Waiting for another process: a while of watching its word, then asleep on it, by the futex system call.
#include "cpu/exchange.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <thread>

#include "common/check.h"
#include "cpu/relax.h"

namespace splitserve {
namespace {

// How long a rank watches, a quarter of a millisecond: ranks with equal shares come within some 10 us of each
// other, and waking one that sleeps takes longer than that. Now and then it lets others have its core: the
// rank that it waits for may be one of them.
constexpr int kLooks = 256;
constexpr int kRelaxesPerLook = 24;
// More than the parts of any step, so that no rank has posted the number from which all go on.
constexpr int64_t kMaxPartsOfStep = 1 << 24;
constexpr int64_t kBillion = 1'000'000'000;

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kBillion + now.tv_nsec;
}

// The number wraps round.
bool has_reached(uint32_t posted, uint32_t part) { return static_cast<int32_t>(posted - part) >= 0; }

// Returns when the word is no longer `seen`, after the time, or for no reason.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, int64_t longest_ns) {
  const timespec longest{longest_ns / kBillion, longest_ns % kBillion};
  // Not the private kind, which knows only the threads of one process.
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &longest, nullptr, 0);
}

void futex_wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

int64_t exchange_bytes(int64_t size) {
  return size * (static_cast<int64_t>(sizeof(RankLine)) + 2 * kSlotBytes);
}

void Exchange::begin() const {
  const auto before = static_cast<uint32_t>(own->part);
  for (int64_t other = 0; other < size; ++other) wait_until(other, before);
  ++own->part;
}

void Exchange::post() const {
  line(rank).posted.store(static_cast<uint32_t>(own->part), std::memory_order_seq_cst);
  wake();
}

void Exchange::wait_for(int64_t other) const { wait_until(other, static_cast<uint32_t>(own->part)); }

void Exchange::settle() const {
  for (int64_t other = 0; other < size; ++other) wait_for(other);
  own->settled = own->part;
}

void Exchange::abandon() const {
  const auto count = static_cast<uint32_t>(++own->abandoned);
  line(rank).abandoned.store(count, std::memory_order_seq_cst);
  wake();
  for (int64_t other = 0; other < size; ++other) {
    const std::atomic<uint32_t>& theirs = line(other).abandoned;
    watch(other, [&] { return has_reached(theirs.load(std::memory_order_seq_cst), count); });
  }
  // Nobody reads a slot of that step any more.
  own->part = own->settled += kMaxPartsOfStep;
  post();
}

char* Exchange::slot(int64_t other) const {
  const int64_t index = 2 * other + (own->part & 1);
  return memory + size * static_cast<int64_t>(sizeof(RankLine)) + index * kSlotBytes;
}

void Exchange::wait_until(int64_t other, uint32_t part) const {
  const RankLine& theirs = line(other);
  const auto abandoned = static_cast<uint32_t>(own->abandoned);
  const auto has_posted = [&] { return has_reached(theirs.posted.load(std::memory_order_seq_cst), part); };
  const auto has_left = [&] { return theirs.abandoned.load(std::memory_order_seq_cst) != abandoned; };
  watch(other, [&] { return has_posted() || has_left(); });
  // In this order, as it posts nothing more of a step that it has left.
  if (has_left() && !has_posted()) {
    TVM_FFI_THROW(StepAbandonedError) << "place " << other << " of " << size << " has abandoned the step";
  }
}

template <typename Done>
void Exchange::watch(int64_t other, const Done& is_done) const {
  for (int look = 0; look < kLooks; ++look) {
    for (int i = 0; i < kRelaxesPerLook; ++i) {
      if (is_done()) return;
      relax();
    }
    std::this_thread::yield();
  }
  sleep(other, is_done);
}

template <typename Done>
void Exchange::sleep(int64_t other, const Done& is_done) const {
  RankLine& theirs = line(other);
  const int64_t deadline_ns = now_ns() + own->timeout_ns;
  // In one order with wake(): it sees this count, or is_done what was stored before it.
  theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
  uint32_t seen = theirs.events.load(std::memory_order_seq_cst);
  bool done = is_done();
  int64_t left_ns = own->timeout_ns;
  while (!done && left_ns > 0) {
    futex_wait(theirs.events, seen, left_ns);
    seen = theirs.events.load(std::memory_order_seq_cst);
    done = is_done();
    left_ns = deadline_ns - now_ns();
  }
  theirs.sleepers.fetch_sub(1, std::memory_order_relaxed);
  if (!done) {
    TVM_FFI_THROW(RankLostError) << "an exchange with the other ranks failed: place " << other << " of "
                                 << size << " did not come within "
                                 << static_cast<double>(own->timeout_ns) / 1e9 << " s";
  }
}

void Exchange::wake() const {
  if (line(rank).sleepers.load(std::memory_order_seq_cst) == 0) return;
  line(rank).events.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(line(rank).events);
}

}  // namespace splitserve
