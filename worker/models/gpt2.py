"""GPT-2: learned positions, layer norms with bias, GELU, and weights stored transposed."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.base import Scores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.attention import Attention, HeadLayout
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.embedding import Embedding, output_head, token_embedding
from splitserve.worker.layers.linear import ColumnLinear, LinearSpec, RowLinear, Source
from splitserve.worker.layers.mlp import MlpSpec, PlainMLP
from splitserve.worker.layers.norm import LayerNorm
from splitserve.worker.layers.stage_boundary import StageBoundary
from splitserve.worker.models.base import Model
from splitserve.worker.parallel.shares import scaled

# The original checkpoints have no prefix.
PREFIX = "transformer."
EMBEDDING = f"{PREFIX}wte"


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated."""
    return GPT2(ctx, config)


class GPT2:
    """Token and position embedding, pre-norm layers, final norm, output head; see models.base.Model."""

    is_recordable = True

    def __init__(self, ctx: LayerContext, config: ModelConfig) -> None:
        self.adapters = ctx.adapters
        self._boundary = boundary = StageBoundary(ctx, config.hidden_size)
        layers = boundary.layers(config.num_layers)
        self.num_layers = len(layers)
        self.num_kv_heads = len(ctx.heads(config).keys)
        self.head_dim = config.head_dim
        self._embedding = None
        if boundary.is_first:
            self._embedding = token_embedding(ctx, config, EMBEDDING)
            positions_shape = (config.max_position_embeddings, config.hidden_size)
            self._positions = Embedding(ctx, "delta", f"{PREFIX}wpe", positions_shape, is_whole=True)
        self._layers = [_Layer(ctx, config, i) for i in layers]
        if boundary.is_last:
            self._norm = LayerNorm(ctx, f"{PREFIX}ln_f", config.hidden_size, config.norm_eps)
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
        if self.adapters is not None:
            self.adapters.begin(meta.adapters)
        if self._embedding is not None:
            residual = self._embedding(token_ids)
            # The first norm adds the positions to the residual, like any other delta.
            delta = self._positions(meta.positions)
        else:
            residual, delta = self._boundary.take_over(len(token_ids))
        for layer, kv_cache in zip(self._layers, kv_caches, strict=True):
            attended = layer.attend(delta, residual, meta, kv_cache)
            if layer is self._layers[-1] and outputs is not None and self._boundary.is_last:
                attended, residual = attended[outputs], residual[outputs]
                if self.adapters is not None:
                    self.adapters.narrow(outputs)
            delta = layer.finish(attended, residual)
        if self._boundary.is_last:
            return self._norm.add(delta, residual)
        self._boundary.hand_on(residual, delta)
        return None

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V], or None; see models.base.Model.compute_logits."""
        return self._head(hidden)


class _Layer:
    """Attention and MLP; returns the delta not yet added to the residual, so the next norm can fuse it."""

    def __init__(self, ctx: LayerContext, config: ModelConfig, index: int) -> None:
        name = f"{PREFIX}h.{index}"
        hidden_size = config.hidden_size
        self._first_norm = LayerNorm(ctx, f"{name}.ln_1", hidden_size, config.norm_eps)
        self._attention = _attention(ctx, config, index)
        self._second_norm = LayerNorm(ctx, f"{name}.ln_2", hidden_size, config.norm_eps)
        spec = MlpSpec(hidden_size, config.intermediate_size, ("c_fc",), "c_proj", bias=True, transposed=True)
        self._mlp = PlainMLP(ctx, f"{name}.mlp", spec, config.activation)

    def attend(
        self, delta: torch.Tensor, residual: torch.Tensor, meta: AttentionMetadata, kv_cache: KVCache
    ) -> torch.Tensor:
        """The part up to and including attention, which mixes tokens."""
        return self._attention(self._first_norm.add(delta, residual), meta, kv_cache)

    def finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The rest of the layer, which works on each token by itself."""
        return self._mlp(self._second_norm.add(self._attention.project(attended), residual))


def _attention(ctx: LayerContext, config: ModelConfig, index: int) -> Attention:
    name = f"{PREFIX}h.{index}.attn"
    hidden_size = config.hidden_size
    heads = ctx.heads(config).queries
    # Queries, keys and values of all heads follow each other in one tensor.
    taken = tuple(scaled(heads, config.head_dim, i * hidden_size) for i in range(3))
    spec = LinearSpec(hidden_size, bias=True, transposed=True)
    qkv = ColumnLinear(ctx, "qkv", [Source(f"{name}.c_attn", 3 * hidden_size, taken)], spec)
    output = RowLinear(ctx, "delta", Source(f"{name}.c_proj", hidden_size), spec._replace(inputs=taken[0]))
    layout = HeadLayout(len(heads), len(heads), config.head_dim, Scores(config.attention_scales[index]))
    return Attention(ctx, layout, (qkv, output))
