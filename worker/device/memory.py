"""How much GPU memory is left for the KV cache once a step of the largest size has run."""

from __future__ import annotations

from typing import NamedTuple

import torch


class DeviceMemory(NamedTuple):
    """A GPU's memory as this process sees it, in bytes.

    Attributes:
        total: of the device.
        free: not held by any process.
        reserved: held by torch's allocator for this process, in use or not.
        allocated: the part of it in use.
        peak: most memory that this process's tensors have taken at once.
    """

    total: int
    free: int
    reserved: int
    allocated: int
    peak: int


def read_memory(device: torch.device) -> DeviceMemory:
    """Query the driver and the allocator."""
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(
        total,
        free,
        torch.cuda.memory_reserved(device),
        torch.cuda.memory_allocated(device),
        torch.cuda.max_memory_allocated(device),
    )


def free_bytes(memory: DeviceMemory, utilization: float) -> int:
    """Return how many bytes this process may still allocate, 0 if none are left."""
    return max(0, min(memory.free, int(memory.total * utilization) - (memory.total - memory.free)))


def cache_bytes(memory: DeviceMemory, utilization: float, pool_bytes: int) -> int:
    """Return how many bytes the KV cache may take, 0 if none are left.

    Memory outside torch's allocator (the driver's context, kernels, other processes) is assumed to stay as it
    is, and so is what the allocator reserves for graphs; tensors are assumed to reach their peak again.

    Args:
        memory: after a step of the largest size, and after the allocator has released what it can.
        utilization: share of the device's memory that may be used in total.
        pool_bytes: size of the KV cache in that step, which is part of the peak.
    """
    outside = memory.total - memory.free - memory.reserved
    kept = memory.reserved - memory.allocated
    return max(0, int(memory.total * utilization) - outside - kept - (memory.peak - pool_bytes))
