"""Seed-OSS: Llama's layers, whose biases on queries, keys and values are apart from the output's."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import AttentionTraits, DecoderTraits, MlpTraits


def read_seed_oss(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a SeedOssForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    attention = AttentionTraits(
        qkv_bias=config.boolean("attention_bias", True),
        output_bias=config.boolean("attention_out_bias", False),
    )
    traits = DecoderTraits(attention=attention, mlp=MlpTraits(bias=config.boolean("mlp_bias", False)))
    defaults = Defaults(max_positions=524288, windows=no_windows, num_kv_heads=8, head_dim=128)
    return read_decoder(path, architecture, config, defaults, traits)
