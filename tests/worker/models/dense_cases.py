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

DENSE_CASES = {**GRANITE}
# One per architecture.
MAIN_DENSE_CASES = ["granite-multipliers"]
