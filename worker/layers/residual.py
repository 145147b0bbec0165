"""How the branches of a layer, attention and MLP, are joined to the residual stream."""

from __future__ import annotations

import torch

from splitserve.worker.layers.context import LayerContext


class BranchEnd:
    """What a branch's output goes through before it is added to the residual: nothing, or a multiplication.

    Args:
        multiplier: 1 for none.
    """

    def __init__(self, ctx: LayerContext, multiplier: float) -> None:
        self._ops = ctx.ops
        self._multiplier = multiplier

    def __call__(self, delta: torch.Tensor) -> torch.Tensor:
        """Return what is to be added, for delta [T, H], which it may overwrite."""
        if self._multiplier != 1.0:
            self._ops.scale(delta, delta, self._multiplier)
        return delta
