"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama's layers, projections fused in the file, longrope."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import window_of_all
from splitserve.engine_core.checkpoint.config.longrope import read_longrope
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import AttentionTraits, DecoderTraits, MlpTraits

_DEFAULTS = Defaults(
    max_positions=4096, windows=window_of_all, rope=read_longrope, rotary_share=1.0, norm_eps=1e-5
)
_TRAITS = DecoderTraits(
    attention=AttentionTraits(inputs=("qkv_proj",)), mlp=MlpTraits(inner=("gate_up_proj",))
)


def read_phi3(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Phi3ForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    return read_decoder(path, architecture, config, _DEFAULTS, _TRAITS)
