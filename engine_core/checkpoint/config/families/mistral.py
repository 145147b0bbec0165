"""Mistral 7B and Nemo: Llama's layers with sliding windows."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import mistral_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import DecoderTraits

_DEFAULTS = Defaults(max_positions=131072, windows=mistral_windows, num_kv_heads=8)


def read_mistral(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a MistralForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    return read_decoder(path, architecture, config, _DEFAULTS, DecoderTraits())
