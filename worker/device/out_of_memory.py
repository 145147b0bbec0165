"""Which of the errors that torch and our kernels raise mean that there was no memory."""

from __future__ import annotations

import torch

# Not all come as an OutOfMemoryError: graphs, pinned memory and the first launch of a kernel take theirs of
# the driver, and then the call says so.
_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether something found no memory, on a GPU or on the CPU; the device is as it was before."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)
