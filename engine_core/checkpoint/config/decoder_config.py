"""How config.json of the shared decoder is read: the fields that its families have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.activations import SILU, Activation
from splitserve.engine_core.checkpoint.config.common_fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_LEN,
    MAX_VOCAB,
    MAX_WIDTH,
    check_head_dim,
    read_dtype,
    read_eos_token_ids,
)
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig, RopeShape, read_rope_config
from splitserve.engine_core.checkpoint.config.traits import DecoderTraits


class Defaults(NamedTuple):
    """What a family's config.json means where it says nothing, and how it says what families say differently.

    Attributes:
        max_positions: default of max_position_embeddings.
        windows: function of the fields and the number of layers that returns the window of each layer.
        num_kv_heads: default of num_key_value_heads; 0, like null, means the number of query heads.
        head_dim: default of the field; 0, like null, means hidden_size divided by the number of heads.
        turned_dim: elements of a head that turn where no field of these names says so; heads have the size
            of the cached ones then, which the family fills in, and there is one KV head.
        theta: default of rope_theta.
        rotary_share: default of partial_rotary_factor; 0 if whole heads turn.
        rope: reads the rotary parameters.
        norm_eps_field, norm_eps: name and default of the epsilon of norms.
        activation: of the MLP.
        tied: default of tie_word_embeddings.
    """

    max_positions: int
    windows: Callable[[Fields, int], tuple[int, ...]]
    num_kv_heads: int = 0
    head_dim: int = 0
    turned_dim: int = 0
    theta: float = 10000.0
    rotary_share: float = 0.0
    rope: Callable[[Fields, RopeShape], RopeConfig] = read_rope_config
    norm_eps_field: str = "rms_norm_eps"
    norm_eps: float = 1e-6
    activation: Activation = SILU
    tied: bool = False


def read_decoder(
    path: Path, architecture: str, config: Fields, defaults: Defaults, traits: DecoderTraits
) -> ModelConfig:
    """Read what all families of the shared decoder have.

    Args:
        path: checkpoint directory.
        architecture: name of the architecture.
        config: of the checkpoint.
        defaults: of the family.
        traits: of its layers.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
    hidden_size = config.integer("hidden_size", 1, MAX_WIDTH)
    num_layers = config.integer("num_hidden_layers", 1, MAX_LAYERS)
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    max_positions = config.integer("max_position_embeddings", 1, MAX_LEN, defaults.max_positions)
    head_dim = defaults.turned_dim or _head_dim(config, hidden_size, num_heads, defaults.head_dim)
    rope = defaults.rope(config, RopeShape(head_dim, max_positions, defaults.theta, defaults.rotary_share))
    return ModelConfig(
        path=str(path),
        architecture=architecture,
        family="decoder",
        dtype=read_dtype(path, config),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", 1, MAX_WIDTH),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=1 if defaults.turned_dim else _num_kv_heads(config, num_heads, defaults.num_kv_heads),
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        max_model_len=_extended_len(config, rope, max_positions),
        norm_eps=config.number(defaults.norm_eps_field, 0.0, 0.1, defaults.norm_eps),
        activation=defaults.activation.read(config),
        tie_word_embeddings=config.boolean("tie_word_embeddings", defaults.tied),
        named_eos_token_ids=read_eos_token_ids(path, config),
        sliding_windows=defaults.windows(config, num_layers),
        attention_scales=(head_dim**-0.5,) * num_layers,
        ropes=(rope,) * num_layers,
        traits=traits,
    )


def _extended_len(config: Fields, rope: RopeConfig, max_positions: int) -> int:
    max_model_len = rope.extended_len(max_positions)
    if max_model_len > MAX_LEN:
        raise config.error(
            "rope factor",
            f"({rope.factor:g}) gives a context of {max_model_len} tokens, more than the limit of {MAX_LEN}",
        )
    return max_model_len


def _head_dim(config: Fields, hidden_size: int, num_heads: int, default: int) -> int:
    if config.is_null("head_dim") or not (config.has("head_dim") or default):
        if hidden_size % num_heads:
            raise config.error(
                "num_attention_heads", f"({num_heads}) does not divide hidden_size ({hidden_size})"
            )
        default = hidden_size // num_heads
    return check_head_dim(config, config.integer("head_dim", 1, MAX_HEAD_DIM, default))


def _num_kv_heads(config: Fields, num_heads: int, default: int) -> int:
    if config.is_null("num_key_value_heads") or not default:
        default = num_heads
    num_kv_heads = config.integer("num_key_value_heads", 1, num_heads, default)
    if num_heads % num_kv_heads:
        raise config.error(
            "num_key_value_heads", f"({num_kv_heads}) does not divide num_attention_heads ({num_heads})"
        )
    return num_kv_heads
