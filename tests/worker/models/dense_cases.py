"""Parity cases of the dense families that are Llama's layers with other traits."""

from __future__ import annotations

from tests.checkpoints import CheckpointSpec

GRANITE = {
    "granite-multipliers": CheckpointSpec(
        "granite",
        {
            "attention_multiplier": 0.25,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 1.7,
            "attention_bias": True,
        },
    ),
    "granite-tied-defaults": CheckpointSpec("granite", {"tie_word_embeddings": True, "mlp_bias": True}),
}
SMOLLM3 = {
    "smollm3-interval": CheckpointSpec("smollm3", {"no_rope_layer_interval": 2, "num_hidden_layers": 3}),
    "smollm3-windows": CheckpointSpec(
        "smollm3",
        {
            "no_rope_layers": [1, 0, 1],
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 13,
            "tie_word_embeddings": False,
        },
    ),
}

DENSE_CASES = {**GRANITE, **SMOLLM3}
# One per architecture.
MAIN_DENSE_CASES = ["granite-multipliers", "smollm3-windows"]
