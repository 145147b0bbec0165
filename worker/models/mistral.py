"""Mistral: the shared decoder without biases; its sliding window, if any, is the same in every layer."""

from __future__ import annotations

from worker.layers.context import LayerContext
from worker.model_config import ModelConfig
from worker.models.base import Model
from worker.models.decoder import Decoder, DecoderTraits


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated."""
    return Decoder(ctx, config, DecoderTraits())
