"""Mistral 7B, Nemo and Mixtral: Llama's layers with sliding windows; Mixtral has experts."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.expert_fields import ExpertFields, with_experts
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import mistral_windows, window_of_all
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import DecoderTraits, ExpertTraits

_DEFAULTS = Defaults(max_positions=131072, windows=mistral_windows, num_kv_heads=8)
_MIXTRAL_DEFAULTS = Defaults(
    max_positions=131072, windows=window_of_all, num_kv_heads=8, theta=1e6, norm_eps=1e-5
)
_MIXTRAL = DecoderTraits(
    experts=ExpertTraits(
        module="block_sparse_moe",
        inner=("experts.{}.w1.weight", "experts.{}.w3.weight"),
        outer="experts.{}.w2.weight",
    )
)


def read_mistral(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a MistralForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    return read_decoder(path, architecture, config, _DEFAULTS, DecoderTraits())


def read_mixtral(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a MixtralForCausalLM; see read_mistral."""
    model = read_decoder(path, architecture, config, _MIXTRAL_DEFAULTS, _MIXTRAL)
    fields = ExpertFields(("num_local_experts", "num_experts"), "intermediate_size", 2)
    return with_experts(config, model, fields, adds_up=True)
