"""Where a forward pass keeps its intermediate results: buffers by role, reused by every layer and step."""

from __future__ import annotations

import torch

# Rows at a multiple of this many bytes share few places of a CPU's caches, and push one another out.
_PAGE_BYTES = 4096
_LINE_BYTES = 64


class Workspace:
    """Activation buffers of one model; one thread only.

    A buffer's role is a name in the code, so their number is fixed; each grows to the largest step seen, and
    the scheduler's token budget bounds that. What a role held is lost when it is taken again.

    Args:
        dtype: of the activations.
        device: where they live.

    Attributes:
        generation: counts the buffers that were made or replaced; while it stays, all lie where they are.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self.generation = 0

    def take(self, role: str, rows: int, columns: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a dense [rows, columns] tensor of undefined content; dtype None is the activations'."""
        size = rows * columns
        buffer = self._buffers.get(role)
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, dtype=dtype or self.dtype, device=self._device)
            self._buffers[role] = buffer
            self.generation += 1
        return buffer[:size].view(rows, columns)

    def take_spaced(self, role: str, rows: int, columns: int) -> torch.Tensor:
        """Return a [rows, columns] tensor as take() does, on a CPU with rows a cache line apart where needed.

        Kernels write and read some rows at a time, which lie in the same few places of the caches if a row's
        bytes are a multiple of a page.
        """
        is_page_wide = columns * self.dtype.itemsize % _PAGE_BYTES == 0
        if not is_page_wide or self._device.type != "cpu":
            return self.take(role, rows, columns)
        return self.take(role, rows, columns + _LINE_BYTES // self.dtype.itemsize)[:, :columns]
