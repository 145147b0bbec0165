"""Qwen3: the shared decoder with a norm on every query and key head before the rotation."""

from __future__ import annotations

from worker.layers.context import LayerContext
from worker.model_config import ModelConfig
from worker.models.base import Model
from worker.models.decoder import Decoder, DecoderTraits


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated."""
    bias = config.attention_bias
    return Decoder(ctx, config, DecoderTraits(qkv_bias=bias, output_bias=bias, qk_norm=True))
