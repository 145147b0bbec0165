"""Qwen2, Qwen2.5, Qwen3: windows per layer; biases, or norms of query and key heads; perhaps experts."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LAYERS, MAX_LEN, MAX_WIDTH
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.expert_fields import (
    ExpertFields,
    with_experts,
    with_qwen_steps,
)
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import qwen_windows, read_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import AttentionTraits, DecoderTraits, ExpertTraits

_SHARED = ExpertTraits(shared="mlp.shared_expert", shared_gate="shared_expert_gate")


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


def read_qwen2_moe(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Qwen2MoeForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    defaults = Defaults(max_positions=32768, windows=_windows_of_even_layers, num_kv_heads=16)
    attention = AttentionTraits(qkv_bias=config.boolean("qkv_bias", True))
    model = read_decoder(
        path, architecture, config, defaults, DecoderTraits(attention=attention, experts=_SHARED)
    )
    fields = ExpertFields(("num_experts",), "moe_intermediate_size", 4)
    shared_size = config.integer("shared_expert_intermediate_size", 1, MAX_WIDTH, 5632)
    adds_up = config.boolean("norm_topk_prob", False)
    model = with_experts(config, model, fields, adds_up=adds_up, shared_size=shared_size)
    return with_qwen_steps(config, model)


def read_qwen3_moe(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Qwen3MoeForCausalLM; see read_qwen2_moe."""
    defaults = Defaults(max_positions=32768, windows=_window_of_all, num_kv_heads=4)
    has_bias = config.boolean("attention_bias", False)
    attention = AttentionTraits(qkv_bias=has_bias, output_bias=has_bias, qk_norm="head")
    model = read_decoder(path, architecture, config, defaults, DecoderTraits(attention=attention))
    fields = ExpertFields(("num_experts", "num_local_experts"), "moe_intermediate_size", 8)
    model = with_experts(config, model, fields, adds_up=config.boolean("norm_topk_prob", False))
    return with_qwen_steps(config, model)


def _window(config: Fields) -> int:
    if not config.boolean("use_sliding_window", False) or config.is_null("sliding_window"):
        return 0
    return config.integer("sliding_window", 1, MAX_LEN, 4096)


def _window_of_all(config: Fields, num_layers: int) -> tuple[int, ...]:
    return (_window(config),) * num_layers


def _windows_of_even_layers(config: Fields, num_layers: int) -> tuple[int, ...]:
    window = _window(config)
    end = config.integer("max_window_layers", 0, MAX_LAYERS, 28)
    return read_windows(config, window, lambda i: bool(window) and i % 2 == 0 and i < end, num_layers)
