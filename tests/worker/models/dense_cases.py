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
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0],
    "partial_rotary_factor": 0.75,
}
_PHI4_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
PHI3 = {
    "phi3-default": CheckpointSpec("phi3", {"sliding_window": 13, "num_key_value_heads": 6}),
    # No sequence is longer than the trained context, so transformers has the short factors too.
    "phi3-longrope-short": CheckpointSpec("phi3", {**_PHI4_HEADS, "rope_parameters": LONGROPE}),
    # Of the prompt, all is longer: both have the long factors.
    "phi3-longrope-long": CheckpointSpec(
        "phi3",
        {
            **_PHI4_HEADS,
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 32,
            "tie_word_embeddings": True,
        },
    ),
}
OLMO = {
    "olmo2": CheckpointSpec("olmo2", {"attention_bias": True}),
    "olmo2-mha-yarn": CheckpointSpec(
        "olmo2",
        {
            "num_key_value_heads": 6,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "olmo3": CheckpointSpec("olmo3", {"num_hidden_layers": 4, "sliding_window": 13}),
    "olmo3-local-theta": CheckpointSpec(
        "olmo3",
        {
            "sliding_window": 13,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
}
GEMMA = {
    "gemma2": CheckpointSpec(
        "gemma2",
        {
            "sliding_window": 13,
            "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": False,
        },
    ),
    "gemma2-tied-defaults": CheckpointSpec("gemma2", {"attention_bias": True, "num_hidden_layers": 3}),
    "gemma3": CheckpointSpec(
        "gemma3",
        {
            "num_hidden_layers": 3,
            "sliding_window": 13,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 24,
            "attention_bias": True,
        },
    ),
    "gemma3-untied-capped": CheckpointSpec(
        "gemma3",
        {
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
}
GLM = {
    "glm": CheckpointSpec("glm"),
    "glm4-no-bias": CheckpointSpec("glm4", {"attention_bias": False, "tie_word_embeddings": True}),
    "glm4-yarn": CheckpointSpec(
        "glm4",
        {
            "head_dim": 24,
            "partial_rotary_factor": 0.75,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
}
COHERE = {
    "cohere": CheckpointSpec("cohere", {"logit_scale": 0.5, "tie_word_embeddings": False}),
    "cohere-tied-biases": CheckpointSpec("cohere", {"attention_bias": True}),
    "cohere2": CheckpointSpec(
        "cohere2",
        {
            "num_hidden_layers": 3,
            "sliding_window": 13,
            "sliding_window_pattern": 2,
            "logit_scale": 2.0,
            "tie_word_embeddings": False,
        },
    ),
}
STARCODER = {
    "starcoder2-window": CheckpointSpec("starcoder2", {"sliding_window": 13, "tie_word_embeddings": False}),
    "starcoder2-tied-no-bias": CheckpointSpec("starcoder2", {"use_bias": False}),
}
OTHERS = {
    "seedoss": CheckpointSpec("seedoss", {"attention_out_bias": True}),
    # Falcon 3 in its layout: wide heads and another base.
    "llama-falcon3": CheckpointSpec(
        "llama",
        {
            "head_dim": 256,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000042.0},
        },
    ),
}

DENSE_CASES = {**GRANITE, **SMOLLM3, **PHI3, **OLMO, **GEMMA, **GLM, **COHERE, **STARCODER, **OTHERS}
# One per architecture.
MAIN_DENSE_CASES = [
    "granite-multipliers",
    "smollm3-windows",
    "phi3-longrope-long",
    "olmo2",
    "olmo3-local-theta",
    "gemma2",
    "gemma3",
    "glm",
    "glm4-yarn",
    "cohere",
    "cohere2",
    "starcoder2-window",
    "seedoss",
]
