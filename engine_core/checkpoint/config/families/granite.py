"""Granite 3, dense and sparse: multipliers on embedding, attention scores, residual and logits."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.common_fields import MAX_WIDTH
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.expert_fields import ExpertFields, with_experts
from splitserve.engine_core.checkpoint.config.families.llama import llama_traits
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import (
    AttentionTraits,
    DecoderTraits,
    ExpertTraits,
    Multipliers,
)

_EXPERTS = ExpertTraits(
    module="block_sparse_moe",
    router="router.layer",
    inner=("input_linear.weight",),
    outer="output_linear.weight",
    shared="shared_mlp",
    shared_inner=("input_linear",),
    shared_outer="output_linear",
)


def read_granite(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a GraniteForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    return _read(path, architecture, config, llama_traits(config))


def read_granite_moe(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a GraniteMoeForCausalLM or a GraniteMoeSharedForCausalLM; see read_granite."""
    has_bias = config.boolean("attention_bias", False)
    attention = AttentionTraits(qkv_bias=has_bias, output_bias=has_bias)
    model = _read(path, architecture, config, DecoderTraits(attention=attention, experts=_EXPERTS))
    fields = ExpertFields(("num_local_experts",), "intermediate_size", 2)
    is_shared = architecture.startswith("GraniteMoeShared")
    shared_size = config.integer("shared_intermediate_size", 0, MAX_WIDTH, 0) if is_shared else 0
    return with_experts(config, model, fields, adds_up=True, shared_size=shared_size)


def _read(path: Path, architecture: str, config: Fields, traits: DecoderTraits) -> ModelConfig:
    multipliers = Multipliers(
        embedding=_multiplier(config, "embedding_multiplier"),
        residual=_multiplier(config, "residual_multiplier"),
        logits=1 / _multiplier(config, "logits_scaling"),
    )
    traits = msgspec.structs.replace(traits, multipliers=multipliers)
    defaults = Defaults(max_positions=2048, windows=no_windows)
    model = read_decoder(path, architecture, config, defaults, traits)
    scales = (_multiplier(config, "attention_multiplier"),) * model.num_layers
    return msgspec.structs.replace(model, attention_scales=scales)


def _multiplier(config: Fields, name: str) -> float:
    return config.number(name, 1e-6, 1e6, 1.0)
