"""Qwen2, Qwen2.5 and Qwen3 (dense): windows per layer; biases, or norms of query and key heads."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import qwen_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import AttentionTraits, DecoderTraits


def read_qwen2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Qwen2ForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    defaults = Defaults(max_positions=32768, windows=qwen_windows, num_kv_heads=32)
    traits = DecoderTraits(attention=AttentionTraits(qkv_bias=True))
    return read_decoder(path, architecture, config, defaults, traits)


def read_qwen3(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Qwen3ForCausalLM; see read_qwen2."""
    defaults = Defaults(max_positions=32768, windows=qwen_windows, num_kv_heads=32, head_dim=128)
    has_bias = config.boolean("attention_bias", False)
    traits = DecoderTraits(attention=AttentionTraits(qkv_bias=has_bias, output_bias=has_bias, qk_norm="head"))
    return read_decoder(path, architecture, config, defaults, traits)
