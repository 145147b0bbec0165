// Memory that the ranks of one machine share, and how they take turns in it.
//
// Every rank makes the same exchanges in the same order and counts their parts. For each part a rank writes
// what it has to say to its slot, posts the part's number, and reads the others' slots once they have posted
// it too. A rank that has posted part s has done with s - 1, so two slots each are enough: slot s % 2 may be
// written when all have posted s - 1. All memory is zero at first, which is part 0.
//
// A step of the model ends with settle(), which nobody leaves before all have come. Until then a rank may
// abandon the step: the others learn of it where they wait for that rank, abandon it too, and all go on from
// the same number. A rank that has posted what another waits for is not asked whether it went on to fail: so
// either all settle or all abandon.
#pragma once

#include <atomic>
#include <cstdint>

namespace splitserve {

inline constexpr int64_t kMaxRanks = 64;
// What a rank says in one part: two slots of two ranks stay within a core's second-level cache.
inline constexpr int64_t kSlotBytes = 256 << 10;

// One rank's line of the shared memory.
struct alignas(64) RankLine {
  std::atomic<uint32_t> posted;     // number of the last part
  std::atomic<uint32_t> sleepers;   // ranks that wait for this one asleep
  std::atomic<uint32_t> abandoned;  // steps that this rank has abandoned
  std::atomic<uint32_t> events;     // changes with the others while there are sleepers, who sleep on it
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share these words");

// What a rank knows for itself.
struct OwnState {
  int64_t part;        // number of its last part; the lower 32 bits are what it posts
  int64_t timeout_ns;  // longest wait for another rank
  int64_t settled;     // its last part when all had settled a step
  int64_t abandoned;   // steps that it has abandoned
};

// The shared memory as one rank sees it. Trivially copyable, for recorded calls; OwnState is not copied.
struct Exchange {
  char* memory;  // exchange_bytes(size), aligned to a cache line
  OwnState* own;
  int64_t rank, size;

  // Begins the next part: the own slot may be written.
  void begin() const;
  // Ends the own half of the part: others may read the slot, and those that wait for it are woken.
  void post() const;
  // Waits until a rank has posted this part. Throws RankLostError after own->timeout_ns, StepAbandonedError
  // once that rank has abandoned the step without.
  void wait_for(int64_t other) const;
  // Waits for all ranks: none will abandon what they have done so far.
  void settle() const;
  // Lets all ranks abandon the step, and waits until they have; throws RankLostError like wait_for.
  void abandon() const;
  // Where a rank says what it has to in this part.
  char* slot(int64_t other) const;

 private:
  RankLine& line(int64_t other) const { return reinterpret_cast<RankLine*>(memory)[other]; }
  void wait_until(int64_t other, uint32_t part) const;
  template <typename Done>
  void watch(int64_t other, const Done& is_done) const;
  template <typename Done>
  void sleep(int64_t other, const Done& is_done) const;
  void wake() const;
};

// Bytes of memory that `size` ranks share.
int64_t exchange_bytes(int64_t size);

}  // namespace splitserve
