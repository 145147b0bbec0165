"""How much of a GPU's memory is left for the KV cache once a step of the largest kind has run."""

from __future__ import annotations

from typing import NamedTuple

import torch


class DeviceMemory(NamedTuple):
    """A GPU's memory as this process sees it, in bytes.

    Attributes:
        total: of the device.
        free: what no process holds.
        reserved: what torch's allocator holds for this process, used or not.
        allocated: what of it is in use.
        peak: most that this process's tensors have taken at once.
    """

    total: int
    free: int
    reserved: int
    allocated: int
    peak: int


def read_memory(device: torch.device) -> DeviceMemory:
    """Ask driver and allocator."""
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(
        total,
        free,
        torch.cuda.memory_reserved(device),
        torch.cuda.memory_allocated(device),
        torch.cuda.max_memory_allocated(device),
    )


def cache_bytes(memory: DeviceMemory, utilization: float, pool_bytes: int) -> int:
    """Return what the KV cache may take, 0 if nothing is left.

    What lies outside torch's allocator (the driver's context, kernels, other processes) stays as it is, and
    so does what the allocator keeps for graphs and gives to nobody else; tensors come to their peak again.

    Args:
        memory: after a step of the largest kind, and after the allocator has given back what it can.
        utilization: share of the device that may be taken in all.
        pool_bytes: the KV cache of that step, which is part of the peak.
    """
    outside = memory.total - memory.free - memory.reserved
    kept = memory.reserved - memory.allocated
    return max(0, int(memory.total * utilization) - outside - kept - (memory.peak - pool_bytes))
