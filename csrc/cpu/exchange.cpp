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
  // In one order with sleep_until, which counts itself before it looks: one of the two sees the other.
  line(rank).posted.store(static_cast<uint32_t>(own->part), std::memory_order_seq_cst);
  if (line(rank).sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(line(rank).posted);
}

void Exchange::wait_for(int64_t other) const { wait_until(other, static_cast<uint32_t>(own->part)); }

char* Exchange::slot(int64_t other) const {
  const int64_t index = 2 * other + (own->part & 1);
  return memory + size * static_cast<int64_t>(sizeof(RankLine)) + index * kSlotBytes;
}

void Exchange::wait_until(int64_t other, uint32_t part) const {
  const std::atomic<uint32_t>& posted = line(other).posted;
  for (int look = 0; look < kLooks; ++look) {
    for (int i = 0; i < kRelaxesPerLook; ++i) {
      if (has_reached(posted.load(std::memory_order_acquire), part)) return;
      relax();
    }
    std::this_thread::yield();
  }
  sleep_until(other, part);
}

void Exchange::sleep_until(int64_t other, uint32_t part) const {
  RankLine& theirs = line(other);
  const int64_t deadline_ns = now_ns() + own->timeout_ns;
  theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
  uint32_t posted = theirs.posted.load(std::memory_order_seq_cst);
  int64_t left_ns = own->timeout_ns;
  while (!has_reached(posted, part) && left_ns > 0) {
    futex_wait(theirs.posted, posted, left_ns);
    posted = theirs.posted.load(std::memory_order_seq_cst);
    left_ns = deadline_ns - now_ns();
  }
  theirs.sleepers.fetch_sub(1, std::memory_order_relaxed);
  if (!has_reached(posted, part)) {
    TVM_FFI_THROW(RankLostError) << "an exchange with the other ranks failed: place " << other << " of "
                                 << size << " did not come within "
                                 << static_cast<double>(own->timeout_ns) / 1e9 << " s";
  }
}

}  // namespace splitserve
