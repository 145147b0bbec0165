"""The layers of encoders: with norms behind attention and MLP, or before them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from splitserve.engine_core.checkpoint.config.encoders.encoder_traits import EncoderTraits
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import ColumnLinear, LinearSpec, RowLinear, Source
from splitserve.worker.layers.mlp import GatedMLP, MlpSpec, PlainMLP
from splitserve.worker.layers.norm import LayerNorm
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.layers.whole_attention import WholeAttention, WholeHeads
from splitserve.worker.parallel.shares import scaled

# Buffers of norms' outputs, which take turns where each is what the next sum is added to.
INPUT, MIDDLE = "normed", "normed_midway"


class Stream(NamedTuple):
    """What passes from layer to layer: residual [T, H], and a delta that is not added to it yet, or None."""

    residual: torch.Tensor
    delta: torch.Tensor | None = None


class EncoderLayer(Protocol):
    """One layer."""

    def __call__(
        self, stream: Stream, meta: AttentionMetadata, outputs: torch.Tensor | None = None
    ) -> Stream:
        """Return what the next layer reads, of all tokens or of `outputs` alone."""


class PostNormLayer:
    """Attention, then MLP; each result is added to what was read, and the sum normalised."""

    def __init__(
        self,
        ctx: LayerContext,
        config: ModelConfig,
        traits: EncoderTraits,
        index: int,
        rotary: RotaryEmbedding | None,
    ) -> None:
        name = _name(traits, index)
        self._attention = _attention(ctx, config, traits, index, rotary)
        self._middle = norm(ctx, config, traits, f"{name}.{traits.attention_norm}", MIDDLE)
        self._mlp = _mlp(ctx, config, traits, name)
        self._end = norm(ctx, config, traits, f"{name}.{traits.mlp_norm}", INPUT)

    def __call__(
        self, stream: Stream, meta: AttentionMetadata, outputs: torch.Tensor | None = None
    ) -> Stream:
        """See EncoderLayer."""
        x = stream.residual
        attended = self._attention(x, meta)
        if outputs is not None:
            attended, x = attended[outputs], x[outputs]
        middle = self._middle.add(self._attention.project(attended), x)
        return Stream(self._end.add(self._mlp(middle), middle))


class PreNormLayer:
    """Attention, then MLP; each reads a norm of the residual, and its result is added to it.

    Attention of the first layer reads the residual itself, which the embeddings' norm made.
    """

    def __init__(
        self,
        ctx: LayerContext,
        config: ModelConfig,
        traits: EncoderTraits,
        index: int,
        rotary: RotaryEmbedding | None,
    ) -> None:
        name = _name(traits, index)
        self._first: LayerNorm | None = None
        if index > 0:
            self._first = norm(ctx, config, traits, f"{name}.{traits.attention_norm}", INPUT)
        self._attention = _attention(ctx, config, traits, index, rotary)
        self._second = norm(ctx, config, traits, f"{name}.{traits.mlp_norm}", INPUT)
        self._mlp = _mlp(ctx, config, traits, name)

    def __call__(
        self, stream: Stream, meta: AttentionMetadata, outputs: torch.Tensor | None = None
    ) -> Stream:
        """See EncoderLayer."""
        residual, delta = stream
        normed = residual
        if self._first is not None:
            assert delta is not None, "only the first layer has none before it"
            normed = self._first.add(delta, residual)
        attended = self._attention(normed, meta)
        if outputs is not None:
            attended, residual = attended[outputs], residual[outputs]
        return Stream(residual, self._mlp(self._second.add(self._attention.project(attended), residual)))


def norm(ctx: LayerContext, config: ModelConfig, traits: EncoderTraits, name: str, role: str) -> LayerNorm:
    """Return a norm of an encoder by its name in the checkpoint; `role` names its buffer."""
    has_bias = traits.norms_have_bias
    return LayerNorm(ctx, name, config.hidden_size, config.norm_eps, has_bias=has_bias, role=role)


def _name(traits: EncoderTraits, index: int) -> str:
    return f"{traits.prefix}{traits.layers}.{index}"


def _mlp(ctx: LayerContext, config: ModelConfig, traits: EncoderTraits, name: str) -> GatedMLP | PlainMLP:
    mlp = traits.mlp
    spec = MlpSpec(config.hidden_size, config.intermediate_size, mlp.inner, mlp.outer, bias=mlp.bias)
    return (GatedMLP if mlp.is_gated else PlainMLP)(ctx, name, spec, config.activation)


def _attention(
    ctx: LayerContext, config: ModelConfig, traits: EncoderTraits, index: int, rotary: RotaryEmbedding | None
) -> WholeAttention:
    name, bias = _name(traits, index), traits.attention_bias
    heads = ctx.heads(config).queries
    size, width = config.num_heads * config.head_dim, config.hidden_size
    if len(traits.attention_inputs) == 1:
        # Queries, keys and values of all heads follow each other in one tensor.
        taken = tuple(scaled(heads, config.head_dim, i * size) for i in range(3))
        sources = [Source(f"{name}.{traits.attention_inputs[0]}", 3 * size, taken)]
    else:
        rows = (scaled(heads, config.head_dim),)
        sources = [Source(f"{name}.{part}", size, rows) for part in traits.attention_inputs]
    qkv = ColumnLinear(ctx, "qkv", sources, LinearSpec(width, bias))
    spec = LinearSpec(size, bias, inputs=scaled(heads, config.head_dim))
    output = RowLinear(ctx, "delta", Source(f"{name}.{traits.attention_output}", width), spec)
    reach = traits.reaches[index] if traits.reaches else 0
    layout = WholeHeads(len(heads), config.head_dim, config.attention_scales[index], reach)
    return WholeAttention(ctx, layout, (qkv, output), rotary)
