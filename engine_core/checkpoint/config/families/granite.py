"""Granite 3 (dense): Llama's layers with multipliers on embedding, attention scores, residual and logits."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.families.llama import llama_traits
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import Multipliers


def read_granite(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a GraniteForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    multipliers = Multipliers(
        embedding=_multiplier(config, "embedding_multiplier"),
        residual=_multiplier(config, "residual_multiplier"),
        logits=1 / _multiplier(config, "logits_scaling"),
    )
    traits = msgspec.structs.replace(llama_traits(config), multipliers=multipliers)
    defaults = Defaults(max_positions=2048, windows=no_windows)
    model = read_decoder(path, architecture, config, defaults, traits)
    scales = (_multiplier(config, "attention_multiplier"),) * model.num_layers
    return msgspec.structs.replace(model, attention_scales=scales)


def _multiplier(config: Fields, name: str) -> float:
    return config.number(name, 1e-6, 1e6, 1.0)
