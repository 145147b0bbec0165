"""GLM-4: half of each head turns, in neighbouring pairs; GLM-4-0414 has more norms."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import (
    AttentionTraits,
    DecoderTraits,
    MlpTraits,
    NormTraits,
)

_DEFAULTS = Defaults(
    max_positions=131072,
    windows=no_windows,
    num_kv_heads=2,
    head_dim=128,
    rotary_share=0.5,
    norm_eps=1.5625e-7,
)
_GLM4_NORMS = NormTraits(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


def read_glm(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a GlmForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    attention = AttentionTraits(qkv_bias=config.boolean("attention_bias", True), is_rotary_interleaved=True)
    traits = DecoderTraits(attention=attention, mlp=MlpTraits(inner=("gate_up_proj",)))
    return read_decoder(path, architecture, config, _DEFAULTS, traits)


def read_glm4(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Glm4ForCausalLM; see read_glm."""
    model = read_glm(path, architecture, config)
    return msgspec.structs.replace(model, traits=msgspec.structs.replace(model.traits, norms=_GLM4_NORMS))
