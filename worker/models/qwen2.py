"""Qwen2 and Qwen2.5: the shared decoder with biases on query, key and value, and windows on upper layers."""

from __future__ import annotations

from worker.layers.context import LayerContext
from worker.model_config import ModelConfig
from worker.models.base import Model
from worker.models.decoder import Decoder, DecoderTraits


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated."""
    return Decoder(ctx, config, DecoderTraits(qkv_bias=True))
