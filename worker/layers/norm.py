"""Normalisation layers, alone and fused with the residual addition before them."""

from __future__ import annotations

from typing import Protocol

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.parameter import DenseParameter, Part
from splitserve.worker.layers.weight_plan import Table

_ROLE = "normed"


class Norm(Protocol):
    """The interface of the norms of a decoder."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x [T, H] in the norms' shared buffer."""

    def add(self, delta: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Add delta [T, H] to residual in place and return the norm of the sum."""


class RMSNorm:
    """x / rms(x) * (weight + offset) over the last dimension."""

    def __init__(self, ctx: LayerContext, name: str, size: int, eps: float, offset: float = 0.0) -> None:
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        self._weight = ctx.plan.declare_vector(size, [Part(f"{name}.weight", (size,))])
        self._eps = eps
        self._offset = offset

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x [T, H] in the norms' shared buffer."""
        out = self._workspace.take(_ROLE, x.shape[0], x.shape[1])
        self._ops.rms_norm(out, x, self._weight.tensor, self._eps, self._offset)
        return out

    def add(self, delta: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Add delta [T, H] to residual in place and return the norm of the sum."""
        out = self._workspace.take(_ROLE, delta.shape[0], delta.shape[1])
        self._ops.fused_add_rms_norm(out, delta, residual, self._weight.tensor, self._eps, self._offset)
        return out


class HeadNorms:
    """The RMS norms of every query and key head, which the attention backend computes.

    Args:
        names: checkpoint names of the query norm and the key norm.
        head_dim: D.

    Attributes:
        eps: added to the mean squares.
        offset: added to the weights.
    """

    def __init__(
        self, ctx: LayerContext, names: tuple[str, str], head_dim: int, eps: float, offset: float = 0.0
    ) -> None:
        self._weights = [
            ctx.plan.declare_vector(head_dim, [Part(f"{name}.weight", (head_dim,))]) for name in names
        ]
        self.eps = eps
        self.offset = offset

    @property
    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights of the query norm and the key norm, [D] each, once they are loaded."""
        return self._weights[0].tensor, self._weights[1].tensor


class RowNorms:
    """The RMS norms of all query heads of a token together, and of all key heads.

    Args:
        names: checkpoint names of the query norm and the key norm.
        sizes: elements of a token's queries, and of its keys.
    """

    def __init__(self, ctx: LayerContext, names: tuple[str, str], sizes: tuple[int, int], eps: float) -> None:
        assert ctx.group is None, "no rank has a whole row"
        self._ops = ctx.ops
        self._weights = [
            ctx.plan.declare_vector(size, [Part(f"{name}.weight", (size,))])
            for name, size in zip(names, sizes, strict=True)
        ]
        self._eps = eps

    def __call__(self, q: torch.Tensor, k: torch.Tensor) -> None:
        """Norm queries and keys [T, size] in place; they may be slices of one buffer."""
        for x, weight in zip((q, k), self._weights, strict=True):
            self._ops.rms_norm(x, x, weight.tensor, self._eps)


class LayerNorm:
    """(x - mean) / std * weight + bias over the last dimension; some have no bias.

    Args:
        role: name of the output buffer in the workspace.
    """

    def __init__(
        self,
        ctx: LayerContext,
        name: str,
        size: int,
        eps: float,
        *,
        has_bias: bool = True,
        role: str = _ROLE,
    ) -> None:
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        self._role = role
        self._weight = ctx.plan.declare_vector(size, [Part(f"{name}.weight", (size,))])
        self._bias: DenseParameter | Table
        if has_bias:
            self._bias = ctx.plan.declare_vector(size, [Part(f"{name}.bias", (size,))])
        else:
            dtype = ctx.workspace.dtype
            self._bias = ctx.plan.declare_table(lambda: torch.zeros(size, dtype=dtype))
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x [T, H] in this norm's buffer."""
        out = self._workspace.take(self._role, x.shape[0], x.shape[1])
        self._ops.layer_norm(out, x, self._weight.tensor, self._bias.tensor, self._eps)
        return out

    def add(self, delta: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Add delta [T, H] to residual in place and return the norm of the sum."""
        out = self._workspace.take(self._role, delta.shape[0], delta.shape[1])
        self._ops.fused_add_layer_norm(
            out, delta, residual, self._weight.tensor, self._bias.tensor, self._eps
        )
        return out


def residual_norm(ctx: LayerContext, config: ModelConfig, name: str) -> Norm:
    """Return a norm of the residual stream of the kind that a model has, by its name in the checkpoint."""
    traits, size, eps = config.traits.norms, config.hidden_size, config.norm_eps
    if traits.kind == "layer":
        return LayerNorm(ctx, name, size, eps, has_bias=traits.has_bias)
    return RMSNorm(ctx, name, size, eps, traits.offset)
