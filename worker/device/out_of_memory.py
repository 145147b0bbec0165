"""Which errors of torch and the custom kernels mean out of memory."""

from __future__ import annotations

import torch

# Not all are an OutOfMemoryError: graphs, pinned memory and the first launch of a kernel allocate from the
# driver, and the error text of the call says so.
_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory, on a GPU or the CPU; the device is still usable after it."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)
