"""How config.json of an encoder is read: the fields that its families have in common."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.activations import TANH_GELUS, Activation
from splitserve.engine_core.checkpoint.config.common_fields import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_LEN,
    MAX_VOCAB,
    MAX_WIDTH,
    check_head_dim,
    read_dtype,
)
from splitserve.engine_core.checkpoint.config.encoders.encoder_traits import EncoderTraits
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig

MAX_TOKEN_TYPES = 16


class EncoderDefaults(NamedTuple):
    """What a family's config.json means where it says nothing, and what it calls its fields.

    Attributes:
        max_positions: default of max_position_embeddings.
        norm_eps_field, norm_eps: name and default of the epsilon of norms.
        activation_field: names the activation of the MLP: GELU, exact or not.
    """

    max_positions: int = 512
    norm_eps_field: str = "layer_norm_eps"
    norm_eps: float = 1e-12
    activation_field: str = "hidden_act"


class EncoderSizes(NamedTuple):
    """Of an encoder: its width, layers, heads, and the elements of a head."""

    hidden_size: int
    num_layers: int
    num_heads: int
    head_dim: int


def read_sizes(config: Fields) -> EncoderSizes:
    """Return the sizes of layers.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    hidden_size = config.integer("hidden_size", 1, MAX_WIDTH)
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    if hidden_size % num_heads:
        raise config.error(
            "num_attention_heads", f"({num_heads}) does not divide hidden_size ({hidden_size})"
        )
    head_dim = check_head_dim(config, hidden_size // num_heads)
    return EncoderSizes(hidden_size, config.integer("num_hidden_layers", 1, MAX_LAYERS), num_heads, head_dim)


def read_gelu(config: Fields, field: str) -> str:
    """Return which form of GELU a field names.

    Raises:
        ModelLoadError: it names another activation.
    """
    if config.text(field, "gelu") in TANH_GELUS:
        return "gelu_tanh"
    return Activation(field, ("gelu", *TANH_GELUS), "gelu").read(config)


def read_encoder(
    path: Path,
    architecture: str,
    config: Fields,
    defaults: EncoderDefaults,
    traits: EncoderTraits,
    ropes: tuple[RopeConfig | None, ...] = (),
) -> ModelConfig:
    """Read what all families of encoders have.

    Args:
        path: checkpoint directory.
        architecture: name of the architecture.
        config: of the checkpoint.
        defaults: of the family.
        traits: of its layers.
        ropes: rotary embedding of each layer; () for learned positions.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    for name in ("is_decoder", "add_cross_attention"):
        if config.boolean(name, False):
            raise config.error(name, "must be false: this architecture is served as an encoder")
    hidden_size, num_layers, num_heads, head_dim = read_sizes(config)
    first = traits.embeddings.first_position
    max_positions = config.integer("max_position_embeddings", first + 1, MAX_LEN, defaults.max_positions)
    return ModelConfig(
        path=str(path),
        architecture=architecture,
        family="encoder",
        dtype=read_dtype(path, config),
        vocab_size=config.integer("vocab_size", 1, MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", 1, MAX_WIDTH),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        max_model_len=max_positions - first,
        norm_eps=config.number(defaults.norm_eps_field, 0.0, 0.1, defaults.norm_eps),
        activation="silu" if traits.mlp_is_silu else read_gelu(config, defaults.activation_field),
        tie_word_embeddings=True,
        named_eos_token_ids=(),
        sliding_windows=(0,) * num_layers,
        attention_scales=(head_dim**-0.5,) * num_layers,
        ropes=ropes,
        encoder=traits,
    )
