"""How the branches of a layer, attention and MLP, are joined to the residual stream."""

from __future__ import annotations

import torch

from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.norm import Norm


class ResidualSum:
    """In the place of a norm: a branch that reads the residual itself; see norm.Norm."""

    def __init__(self, ctx: LayerContext) -> None:
        self._ops = ctx.ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x."""
        return x

    def add(self, delta: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Add delta [T, H] to residual in place and return residual."""
        self._ops.add(residual, residual, delta)
        return residual


class BranchEnd:
    """What a branch's output goes through before it is added to the residual.

    Args:
        norm: of the output, None for none.
        multiplier: 1 for none.
    """

    def __init__(self, ctx: LayerContext, norm: Norm | None, multiplier: float) -> None:
        self._ops = ctx.ops
        self._norm = norm
        self._multiplier = multiplier

    def __call__(self, delta: torch.Tensor) -> torch.Tensor:
        """Return what is to be added, for delta [T, H], which it may overwrite."""
        if self._norm is not None:
            delta = self._norm(delta)
        if self._multiplier != 1.0:
            self._ops.scale(delta, delta, self._multiplier)
        return delta
