// Memory for what a kernel computes on its way.
#pragma once

#include <cstdint>

namespace splitserve {

// At least so many bytes, aligned to cache lines, for the calling thread until its next call. They are kept:
// as many as the largest call of a thread has needed. Throws RuntimeError if there are none.
void* scratch(int64_t bytes);

}  // namespace splitserve
