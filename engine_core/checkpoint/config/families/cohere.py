"""Command R and R7B: attention and MLP side by side behind one layer norm, neighbours in a head turn."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LAYERS, MAX_LEN
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows, read_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import (
    AttentionTraits,
    DecoderTraits,
    Multipliers,
    NormTraits,
)

_DEFAULTS = Defaults(
    max_positions=8192, windows=no_windows, tied=True, norm_eps_field="layer_norm_eps", norm_eps=1e-5
)
_NORMS = NormTraits(kind="layer", before_mlp="")


def read_cohere(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a CohereForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    if config.boolean("use_qk_norm", False):
        raise config.error("use_qk_norm", "must be false: norms of queries and keys are not supported here")
    return _read(path, architecture, config, _DEFAULTS._replace(theta=5e5))


def read_cohere2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Cohere2ForCausalLM; see read_cohere. Layers without a window have no rotary embedding."""
    model = _read(path, architecture, config, _DEFAULTS._replace(windows=_windows))
    layers = zip(model.ropes, model.sliding_windows, strict=True)
    return msgspec.structs.replace(model, ropes=tuple(rope if window else None for rope, window in layers))


def _read(path: Path, architecture: str, config: Fields, defaults: Defaults) -> ModelConfig:
    has_bias = config.boolean("attention_bias", False)
    traits = DecoderTraits(
        norms=_NORMS,
        attention=AttentionTraits(qkv_bias=has_bias, output_bias=has_bias, is_rotary_interleaved=True),
        multipliers=Multipliers(logits=config.number("logit_scale", 1e-6, 1e6, 0.0625)),
        is_parallel=True,
    )
    return read_decoder(path, architecture, config, defaults, traits)


def _windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    window = 0 if config.is_null("sliding_window") else config.integer("sliding_window", 1, MAX_LEN, 4096)
    pattern = config.integer("sliding_window_pattern", 1, MAX_LAYERS, 4)
    return read_windows(config, window, lambda i: (i + 1) % pattern != 0, num_layers)
