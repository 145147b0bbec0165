"""OLMo 2, OLMo 3 and OLMoE: norms of whole rows of queries and keys; the dense ones norm branches behind."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LEN
from splitserve.engine_core.checkpoint.config.decoder_config import Defaults, read_decoder
from splitserve.engine_core.checkpoint.config.expert_fields import ExpertFields, with_experts
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_ropes import read_full_rope, with_local_ropes
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows, read_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.traits import AttentionTraits, DecoderTraits, NormTraits

_NORMS = NormTraits(
    before_attention="",
    after_attention="post_attention_layernorm",
    before_mlp="",
    after_mlp="post_feedforward_layernorm",
)
_THETA = 5e5


def _traits(config: Fields, norms: NormTraits = _NORMS) -> DecoderTraits:
    has_bias = config.boolean("attention_bias", False)
    attention = AttentionTraits(qkv_bias=has_bias, output_bias=has_bias, qk_norm="row")
    return DecoderTraits(norms=norms, attention=attention)


def read_olmo2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read an Olmo2ForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    defaults = Defaults(max_positions=2048, windows=no_windows, norm_eps=1e-5)
    return read_decoder(path, architecture, config, defaults, _traits(config))


def read_olmo3(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read an Olmo3ForCausalLM; see read_olmo2."""
    defaults = Defaults(
        max_positions=2048, windows=_windows, norm_eps=1e-5, theta=_THETA, rope=read_full_rope
    )
    model = read_decoder(path, architecture, config, defaults, _traits(config))
    return with_local_ropes(config, model, _THETA)


def read_olmoe(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read an OlmoeForCausalLM; see read_olmo2."""
    if config.has("clip_qkv"):
        raise config.unwanted("clip_qkv", "queries, keys and values are not clipped")
    defaults = Defaults(max_positions=4096, windows=no_windows, norm_eps=1e-5)
    model = read_decoder(path, architecture, config, defaults, _traits(config, NormTraits()))
    fields = ExpertFields(("num_experts", "num_local_experts"), "intermediate_size", 8)
    return with_experts(config, model, fields, adds_up=config.boolean("norm_topk_prob", False))


def _windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    window = 0 if config.is_null("sliding_window") else config.integer("sliding_window", 1, MAX_LEN, 4096)
    return read_windows(config, window, lambda i: (i + 1) % 4 != 0, num_layers)
