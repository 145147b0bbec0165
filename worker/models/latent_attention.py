"""Latent self-attention: the cache holds a latent and a rotary key per token, which all heads read.

A head's keys and values are products of a latent with matrices of that head. Instead of making them, the
queries are multiplied with the first matrix, and what attention has summed up of latents with the second: for
all rows, so that prefill, chunk and decode give the same bits.
"""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.config.model_config import LatentConfig, ModelConfig
from splitserve.worker.attention.base import LatentRotation, LatentScores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import ColumnLinear, LinearSpec, RowLinear, Source
from splitserve.worker.layers.parameter import HeadPairs, PackedParameter, Part
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.parallel.shares import scaled


class LatentAttention:
    """Causal attention of one decoder layer over its paged latents; see layers.attention.Attention.

    Ranks share the query heads; each holds all latents.

    Args:
        config: of the model; it has latents.
        name: of the module in the checkpoint.
        scale: of the scores.
        rotary: of the rotary keys.
    """

    def __init__(
        self, ctx: LayerContext, config: ModelConfig, name: str, scale: float, rotary: RotaryEmbedding
    ) -> None:
        assert config.latent is not None
        latent = config.latent
        heads = ctx.heads(config).queries
        self._backend = ctx.backend
        self._workspace = ctx.workspace
        self._latent = latent
        self._num_heads = len(heads)
        self._scale = scale
        self._rotary = rotary
        self._projection = LatentProjection(ctx, config, name, heads)
        size = latent.size
        self._norm = ctx.plan.declare_vector(size, [Part(f"{name}.kv_a_layernorm.weight", (size,))])
        stored = _StoredHeads(f"{name}.kv_b_proj.weight", config.num_heads, latent)
        self._keys = stored.keys(ctx, heads)
        self._values = stored.values(ctx, heads)
        attended = config.num_heads * latent.value_dim
        spec = LinearSpec(attended, inputs=scaled(heads, latent.value_dim))
        self._output = RowLinear(ctx, "delta", Source(f"{name}.o_proj", config.hidden_size), spec)

    def __call__(self, x: torch.Tensor, meta: AttentionMetadata, kv_cache: KVCache) -> torch.Tensor:
        """Write the latents of x [T, H]; return the attention output, [T, Hq * V]."""
        latent, count = self._latent, x.shape[0]
        q, latents = self._projection(x)
        rotation = LatentRotation(self._rotary.cos_sin, self._norm.tensor, latent.norm_eps)
        self._backend.write_latents(q[..., latent.plain_dim :], latents, kv_cache, meta, rotation)
        queries = self._workspace.take("latent_queries", count, self._num_heads * latent.size)
        scores = LatentScores(
            self._scale, self._keys.weight, self._values.weight, queries.view(count, -1, latent.size)
        )
        out = self._workspace.take_spaced("attended", count, self._num_heads * latent.value_dim)
        by_heads = out.view(count, self._num_heads, latent.value_dim)
        self._backend.attend_latents(by_heads, q, kv_cache, meta, scores)
        return out

    def project(self, attended: torch.Tensor) -> torch.Tensor:
        """Project attention output [S, Hq * V] to [S, H], in the buffer of residual deltas."""
        return self._output(attended)


class LatentProjection:
    """Queries, latents and rotary keys of hidden states; queries through an inner width, if there is one.

    Args:
        heads: this rank's.
    """

    def __init__(self, ctx: LayerContext, config: ModelConfig, name: str, heads: range) -> None:
        assert config.latent is not None
        self._latent = latent = config.latent
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        is_interleaved = config.traits.attention.is_rotary_interleaved
        plain, turned = latent.plain_dim, latent.rotary_dim
        query_pairs = HeadPairs(latent.query_dim, turned, plain) if is_interleaved else None
        key_pairs = HeadPairs(latent.cached_size, turned, latent.size) if is_interleaved else None
        self._query_size = len(heads) * latent.query_dim
        num_outputs, taken = config.num_heads * latent.query_dim, (scaled(heads, latent.query_dim),)
        keys = Source(f"{name}.kv_a_proj_with_mqa", latent.cached_size, (), key_pairs)
        first = Source(f"{name}.q_proj", num_outputs, taken, query_pairs)
        self._first_size = self._query_size
        self._second: ColumnLinear | None = None
        if latent.query_rank:
            rank = latent.query_rank
            first = Source(f"{name}.q_a_proj", rank)
            second = Source(f"{name}.q_b_proj", num_outputs, taken, query_pairs)
            self._first_size = rank
            part = Part(f"{name}.q_a_layernorm.weight", (rank,))
            self._norm = ctx.plan.declare_vector(rank, [part])
            self._second = ColumnLinear(ctx, "latent_heads", [second], LinearSpec(rank))
        self._first = ColumnLinear(ctx, "qkv", [first, keys], LinearSpec(config.hidden_size))

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the queries of x [T, H], [T, Hq, P + R], and latents before rotary keys, [T, C + R]."""
        count = x.shape[0]
        projected = self._first(x)
        q, latents = projected[:, : self._first_size], projected[:, self._first_size :]
        if self._second is not None:
            inner = self._workspace.take("latent_inner", count, self._first_size)
            self._ops.rms_norm(inner, q, self._norm.tensor, self._latent.norm_eps)
            q = self._second(inner)
        return q.view(count, -1, self._latent.query_dim), latents


class _StoredHeads:
    """The matrices that make keys and values of latents, in one tensor, a head's keys before its values."""

    def __init__(self, name: str, num_heads: int, latent: LatentConfig) -> None:
        self._name = name
        self._latent = latent
        self._height = latent.plain_dim + latent.value_dim
        self._shape = (num_heads * self._height, latent.size)

    def keys(self, ctx: LayerContext, heads: range) -> PackedParameter:
        """Return those of keys, turned: [C, P] per head."""
        size, plain = self._latent.size, self._latent.plain_dim
        parts = []
        for i, head in enumerate(heads):
            rows = range(head * self._height, head * self._height + plain)
            part = Part(self._name, self._shape, i * size, transposed=True, is_absorbed=True)
            parts.append(part._replace(inputs=rows, all_inputs=rows))
        return ctx.plan.declare_heads(len(heads), (size, plain), parts)

    def values(self, ctx: LayerContext, heads: range) -> PackedParameter:
        """Return those of values: [V, C] per head."""
        size, height = self._latent.value_dim, self._height
        parts = [
            Part(
                self._name,
                self._shape,
                i * size,
                outputs=range((head + 1) * height - size, (head + 1) * height),
            )
            for i, head in enumerate(heads)
        ]
        return ctx.plan.declare_heads(len(heads), (size, self._latent.size), parts)
