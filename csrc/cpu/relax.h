// What a thread does between two looks at a word that another one is about to write.
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
