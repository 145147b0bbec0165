// Helper threads that claim tasks: a helper the system has not scheduled yet is never waited for.
//
// OpenMP's barrier waits for every thread of the team. On a machine whose cores are shared, as engine-core,
// frontend and worker share them, that costs a scheduler quantum (milliseconds) per kernel.
#pragma once

#include <cstdint>

namespace splitserve {

using TaskFunction = void (*)(const void* context, int64_t task);

// Calls function(context, task) once for each task in [0, count), on the caller and on up to threads - 1
// helpers, and returns when all are done. A call made while another is in progress runs on its caller alone.
void run_tasks(int64_t count, int threads, TaskFunction function, const void* context);

}  // namespace splitserve
