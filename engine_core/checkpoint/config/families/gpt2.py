"""GPT-2: learned positions, GELU, and an attention scale per layer."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.common_fields import (
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
from splitserve.engine_core.checkpoint.config.layer_windows import no_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig

_COMMON_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
_TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")


def read_gpt2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a GPT2LMHeadModel.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    if config.boolean("add_cross_attention", False):
        raise config.error("add_cross_attention", "must be false, got true: cross attention is not supported")
    vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
    embd, head = _named(config, "n_embd"), _named(config, "n_head")
    hidden_size = config.integer(embd, 1, MAX_WIDTH)
    num_layers = config.integer(_named(config, "n_layer"), 1, MAX_LAYERS)
    num_heads = config.integer(head, 1, MAX_HEADS)
    if hidden_size % num_heads:
        raise config.error(
            _named(config, "n_head"),
            f"({num_heads}) does not divide {_named(config, 'n_embd')} ({hidden_size})",
        )
    head_dim = check_head_dim(config, hidden_size // num_heads)
    max_positions = config.integer(_named(config, "n_positions"), 1, MAX_LEN)
    return ModelConfig(
        path=str(path),
        architecture=architecture,
        family="gpt2",
        dtype=read_dtype(path, config),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("n_inner", 1, MAX_WIDTH, 4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        max_model_len=max_positions,
        norm_eps=config.number("layer_norm_epsilon", 0.0, 0.1, 1e-5),
        activation=_gelu_kind(config),
        tie_word_embeddings=config.boolean("tie_word_embeddings", True),
        named_eos_token_ids=read_eos_token_ids(path, config),
        sliding_windows=no_windows(config, num_layers),
        attention_scales=_scales(config, num_layers, head_dim),
    )


def _named(config: Fields, name: str) -> str:
    """Return the name under which a size is given; the name that other models use takes precedence."""
    return _COMMON_NAMES[name] if config.has(_COMMON_NAMES[name]) else name


def _gelu_kind(config: Fields) -> str:
    name = config.text("activation_function", "gelu_new")
    if name in _TANH_GELUS:
        return "gelu_tanh"
    if name != "gelu":
        raise config.error("activation_function", f"must be gelu or {', '.join(_TANH_GELUS)}, got {name!r}")
    return "gelu"


def _scales(config: Fields, num_layers: int, head_dim: int) -> tuple[float, ...]:
    scale = head_dim**-0.5 if config.boolean("scale_attn_weights", True) else 1.0
    if config.boolean("scale_attn_by_inverse_layer_idx", False):
        return tuple(scale / (i + 1) for i in range(num_layers))
    return (scale,) * num_layers
