"""Workers that make tokens up, for tests and benchmarks of everything but kernels."""
