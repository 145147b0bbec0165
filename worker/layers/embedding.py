"""From token ids to vectors, and from vectors to logits."""

from __future__ import annotations

import torch

from worker.layers.context import LayerContext


class Embedding:
    """One learned row per id.

    Args:
        role: name of the output buffer in the workspace.
        name: its tensor in the checkpoint is `name`.weight [num_rows, size].
        is_head: an output head shares its weight.
    """

    def __init__(
        self, ctx: LayerContext, role: str, name: str, shape: tuple[int, int], is_head: bool = False
    ) -> None:
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        self._role = role
        declare = ctx.plan.declare_head if is_head else ctx.plan.declare_rows
        self.weight = declare(f"{name}.weight", shape)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids (int32 [T]) as [T, size] in this layer's buffer."""
        out = self._workspace.take(self._role, ids.shape[0], self.weight.shape[1])
        self._ops.embedding(out, ids, self.weight.weight)
        return out


class OutputHead:
    """hidden [S, H] -> fp32 logits [S, V].

    Args:
        name: its tensor in the checkpoint is `name`.weight [V, H].
        tied: the embedding whose weight it shares, None for a weight of its own.
    """

    def __init__(self, ctx: LayerContext, name: str, shape: tuple[int, int], tied: Embedding | None) -> None:
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        self._weight = tied.weight if tied else ctx.plan.declare_head(f"{name}.weight", shape)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits in a buffer that the next call overwrites."""
        out = self._workspace.take("logits", hidden.shape[0], self._weight.shape[0], torch.float32)
        self._ops.linear(out, hidden, self._weight.weight)
        return out
