"""config.json of Llama, Mistral, Qwen2 and Qwen3: one decoder with other biases, norms and windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from engine_core.checkpoint.common_fields import (
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
from engine_core.checkpoint.fields import Fields
from engine_core.checkpoint.model_config import ModelConfig
from engine_core.checkpoint.rope_config import RopeConfig, read_rope_config


class _Biases(NamedTuple):
    """Which projections have biases; see ModelConfig."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


class _Variant(NamedTuple):
    """How one architecture reads what the others read otherwise.

    Attributes:
        windows: from the fields and the number of layers to the window of each.
        biases: from the fields to the biases.
        head_dim: where the field is absent; 0 for hidden_size over the number of heads.
        qk_norm: see ModelConfig.
    """

    windows: Callable[[Fields, int], tuple[int, ...]]
    biases: Callable[[Fields], _Biases]
    head_dim: int = 0
    qk_norm: bool = False


def read_llama(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a LlamaForCausalLM.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    return _read(path, architecture, config, _Variant(_no_windows, _llama_biases))


def read_mistral(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a MistralForCausalLM; see read_llama."""
    return _read(path, architecture, config, _Variant(_mistral_windows, lambda fields: _Biases()))


def read_qwen2(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Qwen2ForCausalLM; see read_llama."""
    return _read(path, architecture, config, _Variant(_qwen_windows, lambda fields: _Biases(qkv=True)))


def read_qwen3(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a Qwen3ForCausalLM; see read_llama."""
    variant = _Variant(_qwen_windows, _attention_biases, head_dim=128, qk_norm=True)
    return _read(path, architecture, config, variant)


def _read(path: Path, architecture: str, config: Fields, variant: _Variant) -> ModelConfig:
    vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
    hidden_size = config.integer("hidden_size", 1, MAX_WIDTH)
    num_layers = config.integer("num_hidden_layers", 1, MAX_LAYERS)
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    max_positions = config.integer("max_position_embeddings", 1, MAX_LEN, 2048)
    head_dim = _head_dim(config, hidden_size, num_heads, variant.head_dim)
    rope = read_rope_config(config, max_positions)
    biases = variant.biases(config)
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.error("hidden_act", f"must be silu, got {config.text('hidden_act')!r}")
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
        num_kv_heads=_num_kv_heads(config, num_heads),
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        max_model_len=_extended_len(config, rope, max_positions),
        norm_eps=config.number("rms_norm_eps", 0.0, 0.1, 1e-6),
        activation="silu",
        tie_word_embeddings=config.boolean("tie_word_embeddings", False),
        eos_token_ids=read_eos_token_ids(path, config, vocab_size),
        sliding_windows=variant.windows(config, num_layers),
        attention_scales=(head_dim**-0.5,) * num_layers,
        qkv_bias=biases.qkv,
        output_bias=biases.output,
        mlp_bias=biases.mlp,
        qk_norm=variant.qk_norm,
        rope=rope,
    )


def _attention_biases(config: Fields) -> _Biases:
    has_bias = config.boolean("attention_bias", False)
    return _Biases(qkv=has_bias, output=has_bias)


def _llama_biases(config: Fields) -> _Biases:
    return _attention_biases(config)._replace(mlp=config.boolean("mlp_bias", False))


def _no_windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    return (0,) * num_layers


def _mistral_windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    # Absent means the 4096 of the first release; null, as in later releases, means full attention.
    window = 0 if config.is_null("sliding_window") else config.integer("sliding_window", 1, MAX_LEN, 4096)
    return (window,) * num_layers


def _qwen_windows(config: Fields, num_layers: int) -> tuple[int, ...]:
    """Return the window per layer: `layer_types` decides, else every layer from max_window_layers on."""
    if not config.boolean("use_sliding_window", False) or config.is_null("sliding_window"):
        return (0,) * num_layers
    window = config.integer("sliding_window", 1, MAX_LEN, 4096)
    if not config.has("layer_types"):
        first = config.integer("max_window_layers", 0, MAX_LAYERS, 28)
        return tuple(window if i >= first else 0 for i in range(num_layers))
    kinds = config.texts("layer_types")
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise config.error(
            "layer_types", f"must name full_attention or sliding_attention for each of {num_layers} layers"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _extended_len(config: Fields, rope: RopeConfig, max_positions: int) -> int:
    max_model_len = rope.extended_len(max_positions)
    if max_model_len > MAX_LEN:
        raise config.error("rope factor", f"makes a context of {max_model_len} tokens, above {MAX_LEN}")
    return max_model_len


def _head_dim(config: Fields, hidden_size: int, num_heads: int, default: int) -> int:
    if not config.has("head_dim") and not default:
        if hidden_size % num_heads:
            raise config.error(
                "num_attention_heads", f"({num_heads}) does not divide hidden_size ({hidden_size})"
            )
        default = hidden_size // num_heads
    return check_head_dim(config, config.integer("head_dim", 1, MAX_HEAD_DIM, default))


def _num_kv_heads(config: Fields, num_heads: int) -> int:
    num_kv_heads = config.integer("num_key_value_heads", 1, num_heads, num_heads)
    if num_heads % num_kv_heads:
        raise config.error(
            "num_key_value_heads", f"({num_kv_heads}) does not divide num_attention_heads ({num_heads})"
        )
    return num_kv_heads
