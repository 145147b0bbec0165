"""Gemma 2 and 3 (text): norms around both branches, 1 added to their weights, a scaled embedding."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.activations import GELU_TANH
from splitserve.engine_core.checkpoint.config.common_fields import MAX_CAP, MAX_LAYERS, MAX_LEN, MAX_WIDTH
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_ropes import read_full_rope, with_local_ropes
from splitserve.engine_core.checkpoint.config.layer_windows import read_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import (
    AttentionTraits,
    DecoderTraits,
    Multipliers,
    NormTraits,
)

_NORMS = NormTraits(
    offset=1.0,
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def read_gemma2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Gemma2ForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    attention = AttentionTraits(score_cap=_cap(config, "attn_logit_softcapping", 50.0))
    traits = DecoderTraits(attention=attention, logits_cap=_cap(config, "final_logit_softcapping", 30.0))
    return _read(path, architecture, config, _defaults(8192, pattern=2), traits)


def read_gemma3(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Gemma3ForCausalLM; see read_gemma2."""
    pattern = config.integer("sliding_window_pattern", 1, MAX_LAYERS, 6)
    defaults = _defaults(131072, pattern)._replace(theta=1e6, rope=read_full_rope)
    traits = DecoderTraits(
        attention=AttentionTraits(qk_norm="head"), logits_cap=_cap(config, "final_logit_softcapping", 0.0)
    )
    model = _read(path, architecture, config, defaults, traits)
    return with_local_ropes(config, model, 1e4, "rope_local_base_freq")


def _defaults(max_positions: int, pattern: int) -> Defaults:
    """Return the defaults; without `layer_types`, every pattern-th layer has no window."""

    def windows(config: Fields, num_layers: int) -> tuple[int, ...]:
        window = 0 if config.is_null("sliding_window") else config.integer("sliding_window", 1, MAX_LEN, 4096)
        return read_windows(config, window, lambda i: (i + 1) % pattern != 0, num_layers)

    return Defaults(max_positions, windows, num_kv_heads=4, head_dim=256, tied=True, activation=GELU_TANH)


def _read(
    path: Path, architecture: str, config: Fields, defaults: Defaults, traits: DecoderTraits
) -> ModelConfig:
    if config.boolean("use_bidirectional_attention", False):
        raise config.unwanted("use_bidirectional_attention", "only causal attention is supported")
    has_bias = config.boolean("attention_bias", False)
    attention = msgspec.structs.replace(traits.attention, qkv_bias=has_bias, output_bias=has_bias)
    model = read_decoder(path, architecture, config, defaults, traits)
    multipliers = Multipliers(embedding=model.hidden_size**0.5, is_embedding_rounded=True)
    scale = config.integer("query_pre_attn_scalar", 1, MAX_WIDTH, 256) ** -0.5
    return msgspec.structs.replace(
        model,
        attention_scales=(scale,) * model.num_layers,
        traits=msgspec.structs.replace(traits, norms=_NORMS, attention=attention, multipliers=multipliers),
    )


def _cap(config: Fields, name: str, default: float) -> float:
    """Return a soft cap, 0 for none."""
    is_absent = config.is_null(name) or not (config.has(name) or default)
    return 0.0 if is_absent else config.number(name, 1e-3, MAX_CAP, default)
