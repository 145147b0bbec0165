"""Buffers for the intermediate results of a forward pass, by role, reused by every layer and step."""

from __future__ import annotations

import torch

from splitserve.worker.pages import zero_pages

# Rows spaced at multiples of this many bytes map to few cache sets of a CPU, and evict each other.
_CONFLICT_BYTES = 1024
_LINE_BYTES = 64
# A page of a CPU's memory that spares the way through page tables for each row.
_HUGE_PAGE_BYTES = 2 << 20


class Workspace:
    """Activation buffers of one model; single-threaded.

    Roles are names in the code, so the number of buffers is fixed; each grows to the largest step seen, which
    the scheduler's token budget bounds. A buffer's contents are lost when its role is taken again.

    Args:
        dtype: of the activations.
        device: where the buffers live.

    Attributes:
        device: where the buffers live.
        generation: counts buffers made or replaced; while it is unchanged, no buffer has moved.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self.generation = 0

    def take(self, role: str, rows: int, columns: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return an uninitialised dense [rows, columns] tensor; dtype None is the activations'."""
        size = rows * columns
        buffer = self._buffers.get(role)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[role] = self._allocate(size, dtype or self.dtype)
            self.generation += 1
        return buffer[:size].view(rows, columns)

    def take_spaced(self, role: str, rows: int, columns: int) -> torch.Tensor:
        """Like take(), but on a CPU pad rows by a cache line where that avoids cache conflicts.

        Kernels access several rows at a time, which map to the same few cache sets if the row size is a
        multiple of a quarter of a page.
        """
        conflicts = columns * self.dtype.itemsize % _CONFLICT_BYTES == 0
        if not conflicts or self.device.type != "cpu":
            return self.take(role, rows, columns)
        return self.take(role, rows, columns + _LINE_BYTES // self.dtype.itemsize)[:, :columns]

    def _allocate(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        if self.device.type == "cpu" and size * dtype.itemsize >= _HUGE_PAGE_BYTES:
            return zero_pages((size,), dtype, huge=True)
        return torch.empty(size, dtype=dtype, device=self.device)
