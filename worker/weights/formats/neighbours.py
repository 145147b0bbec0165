"""Rows of two tensors in turns: gates and ups of a layer's units, which kernels want side by side."""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.worker.layers.parameter import Window
from splitserve.worker.weights.tensor_source import Staging, TensorSource


class Neighbours:
    """A TensorSource of two others: rows 2 i are those of the first, rows 2 i + 1 those of the second."""

    def __init__(self, first: TensorSource, second: TensorSource) -> None:
        self._first = first
        self._second = second

    @property
    def tensors(self) -> tuple[CheckpointTensor, ...]:
        """Those of both."""
        return (*self._first.tensors, *self._second.tensors)

    def num_bytes(self, window: Window) -> int:
        """See TensorSource.num_bytes."""
        return sum(source.num_bytes(part) for source, part in self._parted(window))

    def row_bytes(self, window: Window) -> int:
        """See TensorSource.row_bytes; the rows lie a second time where they are put together."""
        return 2 * max(self._first.row_bytes(window), self._second.row_bytes(window))

    def read(self, window: Window, staging: Staging) -> torch.Tensor:
        """See TensorSource.read."""
        odd = window.rows.start % 2
        region = torch.empty(0)
        for place, (source, part) in zip((odd, 1 - odd), self._parted(window), strict=True):
            values = source.read(part, staging)
            if not region.numel():
                region = torch.empty(len(window.rows), *values.shape[1:], dtype=values.dtype)
            region[place::2] = values
        return region

    def _parted(self, window: Window) -> list[tuple[TensorSource, Window]]:
        """Return which rows of each a region has."""
        start, stop = window.rows.start, window.rows.stop
        return [
            (self._first, Window(range((start + 1) // 2, (stop + 1) // 2), window.columns)),
            (self._second, Window(range(start // 2, stop // 2), window.columns)),
        ]
