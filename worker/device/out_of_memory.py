"""Which of the errors that torch raises mean that there was no memory."""

from __future__ import annotations

import torch

_OF_CPU_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a tensor found no memory, on a GPU or on the CPU, where torch has no class of error for it."""
    return isinstance(error, torch.OutOfMemoryError) or _OF_CPU_ALLOCATOR in str(error)
