"""Self-attention: projections, norms and rotation of queries and keys, and the backend's paged attention."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.worker.attention.base import Rotation, Scores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import ColumnLinear, RowLinear
from splitserve.worker.layers.norm import HeadNorms, RowNorms
from splitserve.worker.layers.parameter import DenseParameter
from splitserve.worker.layers.rotary import RotaryEmbedding


class HeadLayout(NamedTuple):
    """Heads of one attention layer.

    Attributes:
        num_heads, num_kv_heads, head_dim: Hq, Hkv, D.
        scores: how they are computed.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scores: Scores


class Attention:
    """Causal attention of one decoder layer over its paged KV cache.

    Args:
        heads: layout.
        qkv: maps [T, H] to queries, keys and values side by side, [T, (Hq + 2 Hkv) * D].
        output: maps [T, Hq * D] to [T, H].
        rotary: None if the model encodes positions elsewhere.
        norms: of queries and keys before the rotation, None for none.
        sinks: scores of the heads' sinks, [Hq], None for none.
    """

    def __init__(
        self,
        ctx: LayerContext,
        heads: HeadLayout,
        projections: tuple[ColumnLinear, RowLinear],
        rotary: RotaryEmbedding | None = None,
        norms: HeadNorms | RowNorms | None = None,
        sinks: DenseParameter | None = None,
    ) -> None:
        self._workspace = ctx.workspace
        self._backend = ctx.backend
        self._heads = heads
        self._qkv, self._output = projections
        self._rotary = rotary
        self._sinks = sinks
        self._head_norms = norms if isinstance(norms, HeadNorms) else None
        self._row_norms = norms if isinstance(norms, RowNorms) else None
        assert rotary is not None or self._head_norms is None, "no model has these norms without a rotation"

    def __call__(self, x: torch.Tensor, meta: AttentionMetadata, kv_cache: KVCache) -> torch.Tensor:
        """Write the keys and values of x [T, H]; return the attention output, [T, Hq * D]."""
        heads = self._heads
        q, k, v = self._project(x)
        self._backend.write(q, k, v, kv_cache, meta, self._rotation())
        out = self._workspace.take_spaced("attended", x.shape[0], heads.num_heads * heads.head_dim)
        scores = heads.scores
        if self._sinks is not None:
            scores = scores._replace(sinks=self._sinks.tensor)
        self._backend.attend(out.view(q.shape), q, kv_cache, meta, scores)
        return out

    def project(self, attended: torch.Tensor) -> torch.Tensor:
        """Project attention output [S, Hq * D] to [S, H], in the buffer of residual deltas."""
        return self._output(attended)

    def _rotation(self) -> Rotation | None:
        if self._rotary is None:
            return None
        if self._head_norms is None:
            return Rotation(self._rotary.cos_sin)
        norms = self._head_norms
        return Rotation(self._rotary.cos_sin, *norms.weights, norms.eps, norms.offset)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q [T, Hq, D], k and v [T, Hkv, D] as views of one buffer."""
        num_heads, num_kv_heads, head_dim = self._heads[:3]
        projected = self._qkv(x)
        if self._row_norms is not None:
            q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
            self._row_norms(projected[:, :q_size], projected[:, q_size : q_size + kv_size])
        qkv = projected.view(x.shape[0], num_heads + 2 * num_kv_heads, head_dim)
        first_v = num_heads + num_kv_heads
        return qkv[:, :num_heads], qkv[:, num_heads:first_v], qkv[:, first_v:]
