"""From token ids to vectors, and from vectors to logits; each rank holds some rows of the vocabulary."""

from __future__ import annotations

import torch

from worker.layers.context import LayerContext


class Embedding:
    """One learned row per id.

    Args:
        role: name of the output buffer in the workspace.
        name: its tensor in the checkpoint is `name`.weight [num_rows, size].
        is_head: an output head shares its weight.
        is_whole: every rank holds all rows.
    """

    def __init__(
        self,
        ctx: LayerContext,
        role: str,
        name: str,
        shape: tuple[int, int],
        *,
        is_head: bool = False,
        is_whole: bool = False,
    ) -> None:
        self._ops = ctx.ops
        self._group = None if is_whole else ctx.group
        self._workspace = ctx.workspace
        self._role = role
        self._rows = range(shape[0]) if is_whole else ctx.share(shape[0])
        declare = ctx.plan.declare_head if is_head else ctx.plan.declare_rows
        self.weight = declare(f"{name}.weight", shape, self._rows)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids (int32 [T]) as [T, size] in this layer's buffer."""
        out = self._workspace.take(self._role, ids.shape[0], self.weight.shape[1])
        if self._group is None:
            self._ops.embedding(out, ids, self.weight.weight)
            return out
        own = self._workspace.take("own_rows", *out.shape)
        places = ids - self._rows.start
        is_elsewhere = (places < 0) | (places >= len(self._rows))
        self._ops.embedding(own, places.masked_fill_(is_elsewhere, 0), self.weight.weight)
        own[is_elsewhere] = 0
        # All but one of the ranks add zeros, so this is exact.
        self._group.sum_into(out, own)
        return out


class OutputHead:
    """hidden [S, H] -> fp32 logits [S, V], on the rank that samples.

    Args:
        name: its tensor in the checkpoint is `name`.weight [V, H].
        tied: the embedding whose weight it shares, None for a weight of its own.
    """

    def __init__(self, ctx: LayerContext, name: str, shape: tuple[int, int], tied: Embedding | None) -> None:
        self._ops = ctx.ops
        self._group = ctx.group
        self._workspace = ctx.workspace
        self._vocab_size = shape[0]
        rows = ctx.share(shape[0])
        self._weight = tied.weight if tied else ctx.plan.declare_head(f"{name}.weight", shape, rows)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return the logits in a buffer that the next call overwrites; None on ranks that do not sample."""
        out = self._workspace.take("logits", hidden.shape[0], self._weight.shape[0], torch.float32)
        self._ops.linear(out, hidden, self._weight.weight)
        return out if self._group is None else self._group.gather_columns(out, self._vocab_size)
