"""Workers that generate fake tokens, for tests and benchmarks of everything but kernels."""
