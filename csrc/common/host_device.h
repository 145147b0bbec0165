// Marks functions that the CPU's compiler and nvcc both compile: the same arithmetic on every device.
#pragma once

#if defined(__CUDACC__)
#define SPLITSERVE_HOST_DEVICE __host__ __device__
#else
#define SPLITSERVE_HOST_DEVICE
#endif
