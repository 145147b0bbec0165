"""StarCoder 2: layer norms, biases everywhere, an MLP without gate, a window."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.activations import TANH_GELUS, Activation
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import window_of_all
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import (
    AttentionTraits,
    DecoderTraits,
    MlpTraits,
    NormTraits,
)

_DEFAULTS = Defaults(
    max_positions=4096,
    windows=window_of_all,
    num_kv_heads=2,
    tied=True,
    norm_eps_field="norm_epsilon",
    norm_eps=1e-5,
    activation=Activation("hidden_act", TANH_GELUS, "gelu_tanh"),
)


def read_starcoder2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Starcoder2ForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    has_bias = config.boolean("use_bias", True)
    traits = DecoderTraits(
        norms=NormTraits(kind="layer", has_bias=True),
        attention=AttentionTraits(qkv_bias=has_bias, output_bias=has_bias),
        mlp=MlpTraits(is_gated=False, inner=("c_fc",), outer="c_proj", bias=has_bias),
    )
    return read_decoder(path, architecture, config, _DEFAULTS, traits)
