"""Llama 2 and 3: the shared decoder, with biases where the config asks for them."""

from __future__ import annotations

from worker.layers.context import LayerContext
from worker.model_config import ModelConfig
from worker.models.base import Model
from worker.models.decoder import Decoder, DecoderTraits


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated."""
    bias = config.attention_bias
    return Decoder(ctx, config, DecoderTraits(qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias))
