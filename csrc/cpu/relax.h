// What a spinning thread does between two reads of a word that another thread will write.
#pragma once

namespace splitserve {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace splitserve
