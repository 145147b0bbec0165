"""Memory allocated directly from the system, in pages backed only when first written."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch


def zero_pages(shape: tuple[int, ...], dtype: torch.dtype, huge: bool = False) -> torch.Tensor:
    """A dense tensor of zero pages of which each is backed by memory only once it is written.

    torch.zeros would touch every page: seconds of start-up, and memory for what is never used.

    Args:
        shape: of the tensor.
        dtype: of the tensor.
        huge: ask for 2 MiB pages, which suits what is written whole and then read in a stream: the processor
            follows fewer page table entries.

    Raises:
        OSError: there is not enough address space.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel built without them refuses the advice.
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)[:num_bytes].view(dtype).view(shape)
