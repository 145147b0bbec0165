"""gpt-oss: experts with biases and a clamped activation, sinks, a window in every other layer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LEN, MAX_WIDTH
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.expert_fields import ExpertFields, with_experts
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import read_windows
from splitserve.engine_core.checkpoint.config.model_config import ClampedSwiglu, ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import (
    RopeConfig,
    RopeShape,
    read_rope,
    rope_fields,
)
from splitserve.engine_core.checkpoint.config.traits import AttentionTraits, DecoderTraits, ExpertTraits
from splitserve.engine_core.checkpoint.gguf.gguf_file import is_gguf

_EXPERTS = ExpertTraits(
    router="router",
    inner=("experts.gate_up_proj",),
    outer="experts.down_proj",
    has_pairs=True,
    is_transposed=True,
    bias=True,
)
# A GGUF file has gates and ups apart, and MXFP4 as a type of blocks.
_GGUF_EXPERTS = ExpertTraits(
    router="router",
    inner=("experts.gate_proj", "experts.up_proj"),
    outer="experts.down_proj",
    has_pairs=True,
    bias=True,
    has_blocks=True,
)
# Inputs that share a scale in MXFP4.
_GROUP = 32
# Of a config.json without rotary parameters.
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_gpt_oss(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a GptOssForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    defaults = Defaults(
        max_positions=131072,
        windows=_windows,
        num_kv_heads=8,
        head_dim=64,
        theta=150000.0,
        rope=_rope,
        norm_eps=1e-5,
    )
    has_bias = config.boolean("attention_bias", True)
    attention = AttentionTraits(qkv_bias=has_bias, output_bias=has_bias, has_sinks=True)
    traits = DecoderTraits(attention=attention, experts=_GGUF_EXPERTS if is_gguf(path) else _EXPERTS)
    model = read_decoder(path, architecture, config, defaults, traits)
    fields = ExpertFields(("num_local_experts", "num_experts"), "intermediate_size", 4)
    model = with_experts(config, model, fields, adds_up=True)
    assert model.experts is not None
    swiglu = ClampedSwiglu(
        alpha=config.number("swiglu_alpha", 1e-3, 1e3, 1.702),
        limit=config.number("swiglu_limit", 1e-3, 1e6, 7.0),
    )
    experts = msgspec.structs.replace(model.experts, swiglu=swiglu, is_mxfp4=_is_mxfp4(config))
    return msgspec.structs.replace(model, experts=experts)


def _is_mxfp4(config: Fields) -> bool:
    quantization = config.nested("quantization_config")
    if quantization is None:
        return False
    method = quantization.text("quant_method", "")
    if method != "mxfp4":
        raise quantization.error("quant_method", f"must be 'mxfp4', got {method!r}: no other is supported")
    for name in ("hidden_size", "intermediate_size"):
        size = config.integer(name, 1, MAX_WIDTH)
        if size % _GROUP:
            raise config.error(name, f"({size}) must be a multiple of {_GROUP} for experts in MXFP4")
    return True


def _windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    window = 0 if config.is_null("sliding_window") else config.integer("sliding_window", 1, MAX_LEN, 128)
    return read_windows(config, window, lambda i: i % 2 == 0, num_layers)


def _rope(config: Fields, shape: RopeShape) -> RopeConfig:
    rope = rope_fields(config)
    return read_rope(Fields(_ROPE, config.where) if rope.is_empty else rope, shape, config)
