"""The shapes that benchmarks.gpu_engine times, as the config.json of a model's publisher has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class Shape(NamedTuple):
    """Sizes of a decoder; all have rotary embeddings, RMS norms and gated MLPs."""

    name: str
    architecture: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    is_tied: bool


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny", "LlamaForCausalLM", "llama", 2, 64, 4, 2, 16, 96, 320, False),
        Shape("qwen3-0.6b", "Qwen3ForCausalLM", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, True),
        Shape("llama-3.1-8b", "LlamaForCausalLM", "llama", 32, 4096, 32, 8, 128, 14336, 128256, False),
        Shape("qwen2.5-14b", "Qwen2ForCausalLM", "qwen2", 48, 5120, 40, 8, 128, 13824, 152064, False),
    )
}


def write_config(shape: Shape, folder: Path, max_len: int) -> Path:
    """Write config.json for sequences of up to max_len tokens; returns the folder."""
    config = {
        "architectures": [shape.architecture],
        "model_type": shape.model_type,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.is_tied,
        "max_position_embeddings": max_len,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
