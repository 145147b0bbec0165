"""One layer of the shared decoder, put together as the family's traits say."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.base import Scores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.attention import Attention, HeadLayout
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.experts import SparseMLP
from splitserve.worker.layers.linear import ColumnLinear, LinearSpec, RowLinear, Source
from splitserve.worker.layers.mlp import GatedMLP, MlpSpec, PlainMLP
from splitserve.worker.layers.norm import HeadNorms, Norm, RowNorms, residual_norm
from splitserve.worker.layers.parameter import HeadPairs, Part
from splitserve.worker.layers.residual import BranchEnd, ResidualSum
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.models.latent_attention import LatentAttention
from splitserve.worker.parallel.shares import scaled


class Midway(NamedTuple):
    """Some tokens of a step in the middle of a layer, behind attention, which mixes tokens.

    Attributes:
        residual: [T, H].
        attended: [T, Hq * D], what attention returned.
        normed: [T, H], what it read.
    """

    residual: torch.Tensor
    attended: torch.Tensor
    normed: torch.Tensor


class DecoderLayer:
    """Attention, then MLP.

    Each layer returns the delta that is not yet added to the residual, so that the next norm can fuse that.

    Args:
        config: of the model.
        name: of the layer in the checkpoint.
        index: of the layer.
        rotary: None for a layer without.
    """

    def __init__(
        self, ctx: LayerContext, config: ModelConfig, name: str, index: int, rotary: RotaryEmbedding | None
    ) -> None:
        norms = config.traits.norms
        self._attention_begin = _branch_begin(ctx, config, name, norms.before_attention)
        self._attention = _attention(ctx, config, f"{name}.self_attn", index, rotary)
        self._attention_end = _branch_end(ctx, config, name, norms.after_attention)
        self._mlp_begin = _branch_begin(ctx, config, name, norms.before_mlp)
        self._mlp = _mlp(ctx, config, name, index)
        self._mlp_end = _branch_end(ctx, config, name, norms.after_mlp)

    def attend(
        self, delta: torch.Tensor | None, residual: torch.Tensor, meta: AttentionMetadata, kv_cache: KVCache
    ) -> Midway:
        """The part up to and including attention, which mixes tokens."""
        begin = self._attention_begin
        normed = begin(residual) if delta is None else begin.add(delta, residual)
        return Midway(residual, self._attention(normed, meta, kv_cache), normed)

    def finish(self, midway: Midway) -> torch.Tensor:
        """The rest of the layer, which works on each token by itself."""
        delta = self._attention_end(self._attention.project(midway.attended))
        return self._mlp_end(self._mlp(self._mlp_begin.add(delta, midway.residual)))


class ParallelLayer:
    """Attention and MLP side by side: both read the same norm; see DecoderLayer."""

    def __init__(
        self, ctx: LayerContext, config: ModelConfig, name: str, index: int, rotary: RotaryEmbedding | None
    ) -> None:
        self._ops = ctx.ops
        self._begin = _branch_begin(ctx, config, name, config.traits.norms.before_attention)
        self._attention = _attention(ctx, config, f"{name}.self_attn", index, rotary)
        self._mlp = _mlp(ctx, config, name, index)

    def attend(
        self, delta: torch.Tensor | None, residual: torch.Tensor, meta: AttentionMetadata, kv_cache: KVCache
    ) -> Midway:
        """The part up to and including attention."""
        normed = self._begin(residual) if delta is None else self._begin.add(delta, residual)
        return Midway(residual, self._attention(normed, meta, kv_cache), normed)

    def finish(self, midway: Midway) -> torch.Tensor:
        """Add attention's output to the residual; return the MLP's."""
        self._ops.add(midway.residual, midway.residual, self._attention.project(midway.attended))
        return self._mlp(midway.normed)


def _mlp(ctx: LayerContext, config: ModelConfig, layer: str, index: int) -> GatedMLP | PlainMLP | SparseMLP:
    if config.experts is not None and config.experts.is_sparse[index]:
        return SparseMLP(ctx, config, layer)
    mlp = config.traits.mlp
    spec = MlpSpec(config.hidden_size, config.intermediate_size, mlp.inner, mlp.outer, bias=mlp.bias)
    return (GatedMLP if mlp.is_gated else PlainMLP)(ctx, f"{layer}.mlp", spec, config.activation)


def _branch_begin(ctx: LayerContext, config: ModelConfig, layer: str, norm: str) -> Norm:
    return residual_norm(ctx, config, f"{layer}.{norm}") if norm else ResidualSum(ctx)


def _branch_end(ctx: LayerContext, config: ModelConfig, layer: str, norm: str) -> BranchEnd:
    made = residual_norm(ctx, config, f"{layer}.{norm}") if norm else None
    return BranchEnd(ctx, made, config.traits.multipliers.residual)


def _attention(
    ctx: LayerContext, config: ModelConfig, name: str, index: int, rotary: RotaryEmbedding | None
) -> Attention | LatentAttention:
    if config.latent is not None:
        assert rotary is not None, "a latent has a rotary key beside it"
        return LatentAttention(ctx, config, name, config.attention_scales[index], rotary)
    traits = config.traits.attention
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    share = ctx.heads(config)
    queries, keys = scaled(share.queries, config.head_dim), scaled(share.keys, config.head_dim)
    pairs = None
    rope = config.ropes[index]
    if traits.is_rotary_interleaved and rope is not None:
        pairs = HeadPairs(config.head_dim, int(config.head_dim * rope.share))
    if len(traits.inputs) == 1:
        assert pairs is None, "no model has both"
        starts = (q_size, q_size + kv_size)
        taken = (queries, *(scaled(share.keys, config.head_dim, start) for start in starts))
        sources = [Source(f"{name}.{traits.inputs[0]}", q_size + 2 * kv_size, taken)]
    else:
        parts = ((q_size, queries, pairs), (kv_size, keys, pairs), (kv_size, keys, None))
        sources = [
            Source(f"{name}.{part}", size, (rows,), order)
            for part, (size, rows, order) in zip(traits.inputs, parts, strict=True)
        ]
    qkv = ColumnLinear(ctx, "qkv", sources, LinearSpec(config.hidden_size, traits.qkv_bias))
    output_source = Source(f"{name}.o_proj", config.hidden_size)
    output = RowLinear(ctx, "delta", output_source, LinearSpec(q_size, traits.output_bias, inputs=queries))
    norms: HeadNorms | RowNorms | None = None
    norm_names = (f"{name}.q_norm", f"{name}.k_norm")
    if traits.qk_norm == "head":
        offset = config.traits.norms.offset
        norms = HeadNorms(ctx, norm_names, config.head_dim, config.norm_eps, offset)
    elif traits.qk_norm == "row":
        norms = RowNorms(ctx, norm_names, (q_size, kv_size), config.norm_eps)
    heads = HeadLayout(
        len(share.queries),
        len(share.keys),
        config.head_dim,
        Scores(config.attention_scales[index], config.sliding_windows[index], traits.score_cap),
    )
    sinks = None
    if traits.has_sinks:
        part = Part(f"{name}.sinks", (config.num_heads,), outputs=share.queries)
        sinks = ctx.plan.declare_vector(len(share.queries), [part])
    return Attention(ctx, heads, (qkv, output), rotary, norms, sinks)
