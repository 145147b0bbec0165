"""Where a worker computes: kernels, memory and copies, one device per file."""
