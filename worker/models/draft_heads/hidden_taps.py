"""How are a model's hidden states handed out? As copies of the residual stream in front of some layers.

A pipeline's last stage hands them out, so those of layers before it come with what it is passed anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from splitserve.worker.device.workspace import Workspace
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix

# Of a pass over more rows together nobody reads any.
MAX_READ_ROWS = 32


class HiddenTaps:
    """Keeps the hidden states of all tokens of the last pass, which recordings of it write, too.

    Args:
        ops: of the device.
        workspace: of the model.
        layers: in front of which states are taken, each at least 1, perhaps the number of layers: behind the
            last one.
        first_layer: of those that this stage holds.
        travels: states of the layers before come from another stage, and all go to the next; not on ranks
            which nobody asks for states.

    Attributes:
        layers: see above.
    """

    def __init__(
        self,
        ops: Kernels[Matrix],
        workspace: Workspace,
        layers: Sequence[int],
        first_layer: int = 0,
        *,
        travels: bool = True,
    ) -> None:
        self._ops = ops
        self._workspace = workspace
        self.layers = tuple(layers)
        self._before = [layer for layer in self.layers if layer < first_layer]
        self._travels = travels
        self._size = 0
        # Most tokens of a pass so far: the buffers are as large, whatever recording ran last.
        self._num_tokens = 0

    def take(self, layer: int, residual: torch.Tensor, delta: torch.Tensor | None) -> None:
        """Note the stream in front of a layer, the sum of residual and delta [T, H]."""
        if layer not in self.layers:
            return
        assert delta is not None, "there is a layer before it"
        self._size = residual.shape[1]
        self._num_tokens = max(self._num_tokens, len(residual))
        self._ops.add(self._buffer(layer, len(residual)), residual, delta)

    def num_arriving(self, num_rows: int) -> int:
        """Return how many states of each token come from the stage before, in a pass over so many rows."""
        return len(self._before) if self._travels and num_rows <= MAX_READ_ROWS else 0

    def arrive(self, states: Sequence[torch.Tensor]) -> None:
        """Note states [T, H] that have come, as many as are said to."""
        for layer, state in zip(self._before, states, strict=False):
            self._size = state.shape[1]
            self._num_tokens = max(self._num_tokens, len(state))
            self._buffer(layer, len(state)).copy_(state)

    def departing(self, num_rows: int, num_tokens: int, end: int) -> list[torch.Tensor]:
        """Return the states [T, H] that the next stage, which begins at a layer, is said to get."""
        if not self._travels or num_rows > MAX_READ_ROWS:
            return []
        return [self._buffer(layer, num_tokens) for layer in self.layers if layer < end]

    def states(self, places: torch.Tensor) -> torch.Tensor:
        """Return the states of some tokens of the last pass side by side, [n, size * layers].

        Args:
            places: int64 [n] on the device, of the tokens among those of the pass.
        """
        return torch.cat([self._buffer(layer, self._num_tokens)[places] for layer in self.layers], dim=1)

    def _buffer(self, layer: int, count: int) -> torch.Tensor:
        return self._workspace.take(f"hidden_{layer}", count, self._size)
