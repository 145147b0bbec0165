"""Decoders without a reader of their own: the fields that the engine needs, under the names in use for them.

The transformers library, in the worker, reads the rest, and refuses what it does not know.
"""

from __future__ import annotations

import re
from pathlib import Path

from splitserve.engine_core.checkpoint.config.common_fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_LEN,
    MAX_VOCAB,
    MAX_WIDTH,
    read_dtype,
    read_eos_token_ids,
)
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig

_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)
_CAUSAL = re.compile("(ForCausalLM|LMHeadModel)$")


def is_causal_name(architecture: str) -> bool:
    """Whether an architecture's name is that of a decoder with an output head."""
    return _CAUSAL.search(architecture) is not None


def read_any_decoder(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read what all decoders have.

    Raises:
        ModelLoadError: names the field that is missing or out of range.
    """
    num_layers = config.integer(_named(config, _LAYERS), 1, MAX_LAYERS)
    num_heads = config.integer(_named(config, _HEADS), 1, MAX_HEADS)
    hidden_size = config.integer(_named(config, _WIDTH), 1, MAX_WIDTH)
    max_positions = config.integer(_named(config, _POSITIONS), 1, MAX_LEN)
    default_dim = min(max(1, hidden_size // num_heads), MAX_HEAD_DIM)
    return ModelConfig(
        path=str(path),
        architecture=architecture,
        family="transformers",
        dtype=read_dtype(path, config),
        vocab_size=config.integer("vocab_size", 1, MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=0,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.integer(_named(config, _KV_HEADS), 1, MAX_HEADS, num_heads),
        head_dim=config.integer("head_dim", 1, MAX_HEAD_DIM, default_dim),
        max_position_embeddings=max_positions,
        max_model_len=max_positions,
        norm_eps=0.0,
        activation="",
        tie_word_embeddings=False,
        named_eos_token_ids=read_eos_token_ids(path, config),
        sliding_windows=(0,) * num_layers,
        attention_scales=(0.0,) * num_layers,
    )


def _named(config: Fields, names: tuple[str, ...]) -> str:
    """Return the first of the names that the config has, or else the first one."""
    return next((name for name in names if config.has(name)), names[0])
