"""How are a model's hidden states handed out? As copies of the residual stream in front of some layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from splitserve.worker.device.workspace import Workspace
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix


class HiddenTaps:
    """Keeps the hidden states of all tokens of the last pass, which recordings of it write, too.

    Args:
        ops: of the device.
        workspace: of the model.
        layers: in front of which states are taken, each at least 1, perhaps the number of layers: behind the
            last one.

    Attributes:
        layers: see above.
    """

    def __init__(self, ops: Kernels[Matrix], workspace: Workspace, layers: Sequence[int]) -> None:
        self._ops = ops
        self._workspace = workspace
        self.layers = tuple(layers)
        self._size = 0

    def take(self, layer: int, residual: torch.Tensor, delta: torch.Tensor | None) -> None:
        """Note the stream in front of a layer, the sum of residual and delta [T, H]."""
        if layer not in self.layers:
            return
        assert delta is not None, "there is a layer before it"
        self._size = residual.shape[1]
        self._ops.add(self._buffer(layer, len(residual)), residual, delta)

    def states(self, places: torch.Tensor) -> torch.Tensor:
        """Return the states of some tokens of the last pass side by side, [n, size * layers].

        Args:
            places: int64 [n], of the tokens among those of the pass.
        """
        count = int(places.max()) + 1
        return torch.cat([self._buffer(layer, count)[places] for layer in self.layers], dim=1)

    def _buffer(self, layer: int, count: int) -> torch.Tensor:
        return self._workspace.take(f"hidden_{layer}", count, self._size)
