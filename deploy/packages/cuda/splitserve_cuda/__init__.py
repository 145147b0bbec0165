"""Holds libsplitserve_cuda.so, which splitserve.worker loads from here if its own folder has none."""
