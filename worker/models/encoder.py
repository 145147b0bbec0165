"""Encoders, such as BERT: tokens that see those behind them, and no KV cache."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from splitserve.engine_core.checkpoint.config.encoders.encoder_traits import EncoderTraits
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.adapters.adapters import Adapters
from splitserve.worker.layers.classifier_head import ClassifierHead
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.embedding import Embedding
from splitserve.worker.layers.norm import LayerNorm
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.models.base import Model
from splitserve.worker.models.encoder_layers import (
    INPUT,
    EncoderLayer,
    PostNormLayer,
    PreNormLayer,
    Stream,
    norm,
)


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated."""
    assert config.encoder is not None, "its reader gives an encoder its traits"
    return Encoder(ctx, config, config.encoder)


class Encoder:
    """Embeddings of tokens, perhaps of positions and token types, then layers; see models.base.Model.

    It needs no KV cache: every prompt is computed in one step.
    """

    num_layers = 0

    # There are no decode steps.
    is_recordable = False
    adapters: Adapters | None = None

    def __init__(self, ctx: LayerContext, config: ModelConfig, traits: EncoderTraits) -> None:
        # Layers with the same parameters share one table.
        rotaries: dict[RopeConfig | None, RotaryEmbedding] = {
            rope: RotaryEmbedding(ctx, rope, config.head_dim, config.max_model_len)
            for rope in dict.fromkeys(config.ropes)
            if rope is not None
        }
        ropes = config.ropes or (None,) * config.num_layers
        self.num_kv_heads = len(ctx.heads(config).keys)
        self.head_dim = config.head_dim
        # The first of the layers with norms before them reads it as their residual.
        role = "residual" if traits.final_norm else INPUT
        self._embeddings = _Embeddings(ctx, config, traits, role)
        make = PreNormLayer if traits.final_norm else PostNormLayer
        self._layers: list[EncoderLayer] = [
            make(ctx, config, traits, i, rotaries.get(ropes[i])) for i in range(config.num_layers)
        ]
        self._final_norm: LayerNorm | None = None
        if traits.final_norm:
            self._final_norm = norm(ctx, config, traits, f"{traits.prefix}{traits.final_norm}", INPUT)
        self._head = None if config.classifier is None else ClassifierHead(ctx, config)
        self.num_params = ctx.plan.num_params
        self.workspace = ctx.workspace

    def forward(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Return final hidden states [S, H]; see models.base.Model.forward."""
        stream = Stream(self._embeddings(token_ids, meta))
        for layer in self._layers:
            stream = layer(stream, meta, outputs if layer is self._layers[-1] else None)
        if self._final_norm is None:
            return stream.residual
        assert stream.delta is not None, "a layer leaves one to the next norm"
        return self._final_norm.add(stream.delta, stream.residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return the labels' numbers, float32 [S, L]; only called if the model has labels."""
        assert self._head is not None, "only hidden states are asked of a model without a head"
        return self._head(hidden)


class _Embeddings:
    """The sum of what a token, its position and its type stand for, normalised."""

    def __init__(self, ctx: LayerContext, config: ModelConfig, traits: EncoderTraits, role: str) -> None:
        names, size = traits.embeddings, config.hidden_size
        self._ops = ctx.ops
        self._words = Embedding(ctx, "embedded", f"{traits.prefix}{names.words}", (config.vocab_size, size))
        self._positions: Embedding | None = None
        self._types: Embedding | None = None
        self._tells_texts_apart = names.num_token_types > 1

        def table(buffer: str, name: str, num_rows: int, first_row: int = 0) -> Embedding:
            shape = (num_rows, size)
            return Embedding(ctx, buffer, f"{traits.prefix}{name}", shape, is_whole=True, first_row=first_row)

        if names.positions:
            num_positions = config.max_position_embeddings
            self._positions = table("delta", names.positions, num_positions, names.first_position)
        if names.token_types:
            self._types = table("embedded_types", names.token_types, names.num_token_types)
        self._norm = norm(ctx, config, traits, f"{traits.prefix}{names.norm}", role)

    def __call__(self, token_ids: torch.Tensor, meta: AttentionMetadata) -> torch.Tensor:
        x = self._words(token_ids)
        if self._types is not None:
            self._ops.add(x, x, self._types_of(self._types, token_ids, meta))
        if self._positions is not None:
            return self._norm.add(self._positions(meta.positions), x)
        return self._norm(x)

    def _types_of(self, table: Embedding, token_ids: torch.Tensor, meta: AttentionMetadata) -> torch.Tensor:
        """Return the vectors of the tokens' types, one row for all if texts of a pair are not told apart."""
        if meta.token_types is None or not self._tells_texts_apart:
            return table(torch.zeros_like(token_ids[:1])).expand(token_ids.shape[0], -1)
        return table(meta.token_types)
