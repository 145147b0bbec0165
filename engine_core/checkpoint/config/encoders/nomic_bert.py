"""NomicBERT: BERT with rotary positions and a gated MLP, under the publisher's names."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LEN
from splitserve.engine_core.checkpoint.config.encoders.encoder_config import (
    MAX_TOKEN_TYPES,
    EncoderDefaults,
    read_encoder,
    read_sizes,
)
from splitserve.engine_core.checkpoint.config.encoders.encoder_traits import EmbeddingTraits, EncoderTraits
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig, RopeShape, read_rope_config
from splitserve.engine_core.checkpoint.config.traits import MlpTraits

_DEFAULTS = EncoderDefaults(max_positions=2048)
_THETA = 1000.0
# The published names, of code that comes with the checkpoints and is not executed.
_COMMON_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}


class _Only(NamedTuple):
    """The only value of a field of that code that is supported, which is also its default here."""

    name: str
    value: bool


_REFUSED = (
    _Only("prenorm", False),
    _Only("parallel_block", False),
    _Only("use_rms_norm", False),
    _Only("causal", False),
    _Only("rotary_emb_interleaved", False),
    _Only("qkv_proj_bias", False),
    _Only("mlp_fc1_bias", False),
    _Only("mlp_fc2_bias", False),
    _Only("scale_attn_by_inverse_layer_idx", False),
    _Only("scale_attn_weights", True),
)


def read_nomic_bert(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a NomicBertModel, whose config.json is the publisher's or that of transformers.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    is_published = config.has("n_embd")
    if is_published:
        _refuse_others(config)
        config = config.renamed(_COMMON_NAMES)
    elif config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.error("hidden_act", f"must be silu or swish, got {config.text('hidden_act', '')!r}")
    sizes = read_sizes(config)
    max_positions = config.integer("max_position_embeddings", 1, MAX_LEN, _DEFAULTS.max_positions)
    if is_published:
        rope = RopeConfig(theta=config.number("rotary_emb_base", 1.0, 1e15, _THETA))
    else:
        rope = read_rope_config(config, RopeShape(sizes.head_dim, max_positions, _THETA))
    ropes = (rope,) * sizes.num_layers
    model = read_encoder(path, architecture, config, _DEFAULTS, _traits(config), ropes)
    if not config.has("rotary_scaling_factor"):
        return model
    # Beyond it frequencies would depend on the length of the sequence.
    trained = config.integer("max_trained_positions", 1, MAX_LEN, 2048)
    return msgspec.structs.replace(model, max_model_len=min(trained, model.max_model_len))


def _traits(config: Fields) -> EncoderTraits:
    num_types = config.integer("type_vocab_size", 1, MAX_TOKEN_TYPES, 2)
    return EncoderTraits(
        embeddings=EmbeddingTraits(positions="", num_token_types=num_types, norm="emb_ln"),
        layers="encoder.layers",
        attention_inputs=("attn.Wqkv",),
        attention_output="attn.out_proj",
        attention_bias=False,
        attention_norm="norm1",
        mlp_norm="norm2",
        # The second of the two is the gate.
        mlp=MlpTraits(inner=("mlp.fc12", "mlp.fc11"), outer="mlp.fc2"),
        mlp_is_silu=True,
    )


def _refuse_others(config: Fields) -> None:
    for name, value in _REFUSED:
        if config.boolean(name, value) is not value:
            raise config.error(name, f"must be {str(value).lower()} or absent")
    if config.integer("num_experts", 0, 2**16, 0) or config.integer("moe_every_n_layers", 0, 2**16, 0):
        raise config.error("num_experts", "must be 0 or absent: experts are not supported")
    if config.has("rotary_emb_scale_base"):
        raise config.unwanted("rotary_emb_scale_base", "scaled rotary embeddings are not supported")
    if config.number("rotary_emb_fraction", 0.0, 1.0, 1.0) != 1.0:
        raise config.error("rotary_emb_fraction", "must be 1: whole heads turn")
    activation = config.text("activation_function", "swiglu")
    if activation != "swiglu":
        raise config.error("activation_function", f"must be 'swiglu', got {activation!r}")
