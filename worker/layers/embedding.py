"""From token ids to vectors, and from vectors to logits."""

from __future__ import annotations

import torch

from worker import ops
from worker.layers.context import LayerContext
from worker.layers.parameter import PackedParameter, Part


class Embedding:
    """One learned row per id.

    Args:
        role: name of the output buffer in the workspace.
        name: its tensor in the checkpoint is `name`.weight [num_rows, size].
    """

    def __init__(self, ctx: LayerContext, role: str, name: str, shape: tuple[int, int]) -> None:
        self._workspace = ctx.workspace
        self._role = role
        self.weight = ctx.plan.declare_matrix(shape, [Part(f"{name}.weight", shape)])

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids (int32 [T]) as [T, size] in this layer's buffer."""
        out = self._workspace.take(self._role, ids.shape[0], self.weight.shape[1])
        ops.embedding(out, ids, self.weight.weight)
        return out


class OutputHead:
    """hidden [S, H] -> fp32 logits [S, V].

    Args:
        name: its tensor in the checkpoint is `name`.weight [V, H].
        tied: the embedding whose weight it shares, None for a weight of its own.
    """

    def __init__(self, ctx: LayerContext, name: str, shape: tuple[int, int], tied: Embedding | None) -> None:
        self._workspace = ctx.workspace
        self._weight: PackedParameter = (
            tied.weight if tied else ctx.plan.declare_matrix(shape, [Part(f"{name}.weight", shape)])
        )

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits in a buffer that the next call overwrites."""
        out = self._workspace.take("logits", hidden.shape[0], self._weight.shape[0], torch.float32)
        ops.linear(out, hidden, self._weight.weight)
        return out
