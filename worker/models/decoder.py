"""The decoder that Llama, Mistral and Qwen share; they differ in biases, query and key norms, and windows."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.attention import Attention, HeadLayout
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.embedding import output_head, token_embedding
from splitserve.worker.layers.linear import ColumnLinear, LinearSpec, RowLinear, Source
from splitserve.worker.layers.mlp import GatedMLP
from splitserve.worker.layers.norm import HeadNorms, RMSNorm
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.layers.stage_boundary import StageBoundary
from splitserve.worker.models.base import Model
from splitserve.worker.parallel.shares import scaled

# Checkpoints of the bare model omit it.
PREFIX = "model."
EMBEDDING = f"{PREFIX}embed_tokens"


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated."""
    return Decoder(ctx, config)


class Decoder:
    """Embedding, layers of rotary attention and gated MLP, final norm, output head; see models.base.Model.

    Args:
        config: sizes, and what differs between the architectures.
    """

    def __init__(self, ctx: LayerContext, config: ModelConfig) -> None:
        assert config.rope is not None, "these architectures have a rotary embedding"
        rotary = RotaryEmbedding(ctx, config.rope, config.head_dim, config.max_model_len)
        self._boundary = boundary = StageBoundary(ctx, config.hidden_size)
        layers = boundary.layers(config.num_layers)
        self.num_layers = len(layers)
        self.num_kv_heads = len(ctx.heads(config).keys)
        self.head_dim = config.head_dim
        self._embedding = token_embedding(ctx, config, EMBEDDING) if boundary.is_first else None
        self._layers = [_DecoderLayer(ctx, config, rotary, i) for i in layers]
        if boundary.is_last:
            self._norm = RMSNorm(ctx, f"{PREFIX}norm", config.hidden_size, config.norm_eps)
            self._head = output_head(ctx, config, EMBEDDING, self._embedding)
        self.num_params = ctx.plan.num_params
        self.workspace = ctx.workspace

    def forward(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Return final hidden states [S, H], or None; see models.base.Model.forward."""
        delta: torch.Tensor | None = None
        if self._embedding is not None:
            residual = self._embedding(token_ids)
        else:
            residual, delta = self._boundary.take_over(len(token_ids))
        for layer, kv_cache in zip(self._layers, kv_caches, strict=True):
            attended = layer.attend(delta, residual, meta, kv_cache)
            if layer is self._layers[-1] and outputs is not None and self._boundary.is_last:
                attended, residual = attended[outputs], residual[outputs]
            delta = layer.finish(attended, residual)
        assert delta is not None
        if self._boundary.is_last:
            return self._norm.add(delta, residual)
        self._boundary.hand_on(residual, delta)
        return None

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V], or None; see models.base.Model.compute_logits."""
        return self._head(hidden)


class _DecoderLayer:
    """Attention and MLP; returns the delta not yet added to the residual, so the next norm can fuse it."""

    def __init__(self, ctx: LayerContext, config: ModelConfig, rotary: RotaryEmbedding, index: int) -> None:
        name = f"{PREFIX}layers.{index}"
        hidden_size, eps = config.hidden_size, config.norm_eps
        self._input_norm = RMSNorm(ctx, f"{name}.input_layernorm", hidden_size, eps)
        self._attention = _attention(ctx, config, rotary, index)
        self._post_norm = RMSNorm(ctx, f"{name}.post_attention_layernorm", hidden_size, eps)
        self._mlp = GatedMLP(ctx, f"{name}.mlp", hidden_size, config.intermediate_size, config.mlp_bias)

    def attend(
        self, delta: torch.Tensor | None, residual: torch.Tensor, meta: AttentionMetadata, kv_cache: KVCache
    ) -> torch.Tensor:
        """The part up to and including attention, which mixes tokens."""
        normed = self._input_norm(residual) if delta is None else self._input_norm.add(delta, residual)
        return self._attention(normed, meta, kv_cache)

    def finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The rest of the layer, which works on each token by itself."""
        return self._mlp(self._post_norm.add(self._attention.project(attended), residual))


def _attention(ctx: LayerContext, config: ModelConfig, rotary: RotaryEmbedding, index: int) -> Attention:
    name = f"{PREFIX}layers.{index}.self_attn"
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    share = ctx.heads(config)
    queries, keys = scaled(share.queries, config.head_dim), scaled(share.keys, config.head_dim)
    sources = [
        Source(f"{name}.q_proj", q_size, (queries,)),
        Source(f"{name}.k_proj", kv_size, (keys,)),
        Source(f"{name}.v_proj", kv_size, (keys,)),
    ]
    qkv = ColumnLinear(ctx, "qkv", sources, LinearSpec(config.hidden_size, config.qkv_bias))
    output_source = Source(f"{name}.o_proj", config.hidden_size)
    output = RowLinear(ctx, "delta", output_source, LinearSpec(q_size, config.output_bias, inputs=queries))
    norms = None
    if config.qk_norm:
        norms = HeadNorms(ctx, (f"{name}.q_norm", f"{name}.k_norm"), config.head_dim, config.norm_eps)
    heads = HeadLayout(
        len(share.queries),
        len(share.keys),
        config.head_dim,
        config.attention_scales[index],
        config.sliding_windows[index],
    )
    return Attention(ctx, heads, (qkv, output), rotary, norms)
