"""The checkpoints that parity is tested on: every architecture, and each way in which its configs differ."""

from __future__ import annotations

import torch

from tests.checkpoints import CheckpointSpec
from tests.worker.models.dense_cases import DENSE_CASES, MAIN_DENSE_CASES
from tests.worker.models.expert_cases import EXPERT_CASES, MAIN_EXPERT_CASES

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

CASES: dict[str, CheckpointSpec] = {
    "llama-gqa-untied": CheckpointSpec("llama"),
    "llama-tied-odd-vocab": CheckpointSpec("llama", {"tie_word_embeddings": True, "vocab_size": 333}),
    "llama-biases-sharded": CheckpointSpec(
        "llama", {"attention_bias": True, "mlp_bias": True}, max_shard_bytes=40_000
    ),
    "llama-head-dim-40": CheckpointSpec("llama", {"head_dim": 40, "num_key_value_heads": 3}),
    "llama-head-dim-64-mqa": CheckpointSpec("llama", {"head_dim": 64, "num_key_value_heads": 1}),
    "llama-mha-theta": CheckpointSpec(
        "llama", {"num_key_value_heads": 6, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}
    ),
    "llama-rope-linear": CheckpointSpec(
        "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}
    ),
    "llama-rope-dynamic": CheckpointSpec(
        "llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}
    ),
    "llama-rope-llama3": CheckpointSpec("llama", {"head_dim": 24, "rope_parameters": _LLAMA3}),
    "llama-rope-yarn": CheckpointSpec("llama", {"head_dim": 24, "rope_parameters": _YARN}),
    "llama-rope-yarn-mscale": CheckpointSpec(
        "llama",
        {
            "head_dim": 24,
            "rope_parameters": {
                **_YARN,
                "mscale": 0.8,
                "mscale_all_dim": 0.4,
                "beta_fast": 16,
                "beta_slow": 2,
                "truncate": False,
            },
        },
    ),
    "mistral-window": CheckpointSpec("mistral", {"sliding_window": 13}),
    "mistral-no-window": CheckpointSpec("mistral", {"sliding_window": None, "head_dim": 24}),
    "mistral-layer-types": CheckpointSpec(
        "mistral", {"sliding_window": 13, "layer_types": ["full_attention", "sliding_attention"]}
    ),
    "qwen2-full": CheckpointSpec("qwen2"),
    "qwen2-upper-windows": CheckpointSpec(
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen2-unused-window": CheckpointSpec(
        "qwen2", {"use_sliding_window": False, "sliding_window": 11, "max_window_layers": 0}
    ),
    "qwen3-tied": CheckpointSpec("qwen3", {"tie_word_embeddings": True}),
    "qwen3-layer-types": CheckpointSpec(
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2-tied": CheckpointSpec("gpt2"),
    "gpt2-untied-scales": CheckpointSpec(
        "gpt2", {"tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True, "n_inner": 72}
    ),
    "gpt2-exact-gelu-unscaled": CheckpointSpec(
        "gpt2", {"activation_function": "gelu", "scale_attn_weights": False, "n_layer": 1}
    ),
    **DENSE_CASES,
    **EXPERT_CASES,
}

# For what does not depend on the layers of a model.
FEW_CASES = [
    "llama-biases-sharded",
    "mistral-window",
    "qwen2-upper-windows",
    "qwen3-layer-types",
    "gpt2-tied",
]
# One per architecture, for what is slower to test and does not differ within an architecture.
MAIN_CASES = [*FEW_CASES, *MAIN_DENSE_CASES, *MAIN_EXPERT_CASES]


def prompt(vocab_size: int, length: int, seed: int = 3) -> list[int]:
    """Return random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (length,), generator=generator).tolist()
