"""Self-attention of an encoder: projections, and attention within whole sequences, without a cache."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.worker.attention.base import WholeScores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import ColumnLinear, RowLinear
from splitserve.worker.layers.rotary import RotaryEmbedding


class WholeHeads(NamedTuple):
    """Heads of one attention layer.

    Attributes:
        num_heads, head_dim: Hq, D.
        scale: multiplies the scores.
        reach: a token sees this many positions to either side of its own; 0: all.
    """

    num_heads: int
    head_dim: int
    scale: float
    reach: int = 0


class WholeAttention:
    """Attention of one encoder layer: a token sees those before and behind it.

    Args:
        heads: layout.
        projections: the first maps [T, H] to queries, keys and values side by side, [T, 3 * Hq * D], the
            second [T, Hq * D] to [T, H].
        rotary: None if the model encodes positions elsewhere.
    """

    def __init__(
        self,
        ctx: LayerContext,
        heads: WholeHeads,
        projections: tuple[ColumnLinear, RowLinear],
        rotary: RotaryEmbedding | None = None,
    ) -> None:
        self._workspace = ctx.workspace
        self._backend = ctx.backend
        self._heads = heads
        self._qkv, self._output = projections
        self._rotary = rotary

    def __call__(self, x: torch.Tensor, meta: AttentionMetadata) -> torch.Tensor:
        """Return the attention output of x [T, H], [T, Hq * D]."""
        num_heads, head_dim, scale, reach = self._heads
        qkv = self._qkv(x).view(x.shape[0], 3 * num_heads, head_dim)
        q, k, v = (qkv[:, i * num_heads : (i + 1) * num_heads] for i in range(3))
        out = self._workspace.take_spaced("attended", x.shape[0], num_heads * head_dim)
        cos_sin = None if self._rotary is None else self._rotary.cos_sin
        self._backend.attend_whole(out.view(q.shape), q, k, v, meta, WholeScores(scale, reach, cos_sin))
        return out

    def project(self, attended: torch.Tensor) -> torch.Tensor:
        """Project attention output [S, Hq * D] to [S, H], in the buffer of residual deltas."""
        return self._output(attended)
