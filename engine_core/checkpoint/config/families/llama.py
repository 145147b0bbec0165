"""Llama 2 and 3, and the many models in their layout, such as Falcon 3."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import AttentionTraits, DecoderTraits, MlpTraits


def llama_traits(config: Fields) -> DecoderTraits:
    """Return the traits of layers that may have biases on attention and MLP; raises as read_llama does."""
    has_bias = config.boolean("attention_bias", False)
    return DecoderTraits(
        attention=AttentionTraits(qkv_bias=has_bias, output_bias=has_bias),
        mlp=MlpTraits(bias=config.boolean("mlp_bias", False)),
    )


def read_llama(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a LlamaForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    defaults = Defaults(max_positions=2048, windows=no_windows)
    return read_decoder(path, architecture, config, defaults, llama_traits(config))
