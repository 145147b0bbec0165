"""Parity cases of the families whose layers have experts."""

from __future__ import annotations

from tests.checkpoints import CheckpointSpec

MIXTRAL = {
    "mixtral": CheckpointSpec("mixtral", {"head_dim": 16, "num_experts_per_tok": 3}),
    "mixtral-window-one-of-two": CheckpointSpec(
        "mixtral",
        {"sliding_window": 13, "num_local_experts": 2, "num_experts_per_tok": 1, "tie_word_embeddings": True},
    ),
}
QWEN_MOE = {
    "qwen2moe": CheckpointSpec("qwen2moe"),
    "qwen2moe-some-layers-windows": CheckpointSpec(
        "qwen2moe",
        {
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "qkv_bias": False,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 13,
            "max_window_layers": 2,
        },
    ),
    "qwen2moe-dense": CheckpointSpec("qwen2moe", {"mlp_only_layers": [0, 1]}),
    "qwen3moe": CheckpointSpec("qwen3moe", {"num_hidden_layers": 3, "mlp_only_layers": [1]}),
    "qwen3moe-window": CheckpointSpec(
        "qwen3moe",
        {
            "norm_topk_prob": False,
            "use_sliding_window": True,
            "sliding_window": 13,
            "attention_bias": True,
            "num_experts_per_tok": 7,
        },
    ),
}
OLMOE = {
    "olmoe": CheckpointSpec("olmoe"),
    "olmoe-biases-adds-up": CheckpointSpec(
        "olmoe", {"attention_bias": True, "norm_topk_prob": True, "tie_word_embeddings": True}
    ),
}
GPT_OSS = {
    "gptoss": CheckpointSpec("gptoss"),
    "gptoss-no-bias-full": CheckpointSpec(
        "gptoss",
        {
            "attention_bias": False,
            "layer_types": ["full_attention", "full_attention"],
            "swiglu_alpha": 0.7,
            "tie_word_embeddings": True,
        },
    ),
}
_MULTIPLIERS = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 1.7,
}
GRANITE_MOE = {
    "granitemoe": CheckpointSpec("granitemoe", _MULTIPLIERS),
    "granitemoe-biases": CheckpointSpec("granitemoe", {"attention_bias": True, "tie_word_embeddings": True}),
    "granitemoeshared": CheckpointSpec("granitemoeshared", _MULTIPLIERS),
    "granitemoeshared-none": CheckpointSpec("granitemoeshared", {"shared_intermediate_size": 0}),
}
_DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
}
DEEPSEEK = {
    "deepseekv2": CheckpointSpec("deepseekv2", {"routed_scaling_factor": 1.5}),
    "deepseekv2-groups-yarn": CheckpointSpec(
        "deepseekv2",
        {
            "q_lora_rank": 40,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 1,
            "rope_parameters": _DEEPSEEK_YARN,
        },
    ),
    "deepseekv2-dense-tied": CheckpointSpec(
        "deepseekv2", {"first_k_dense_replace": 2, "tie_word_embeddings": True}
    ),
    "deepseekv3": CheckpointSpec("deepseekv3", {"rope_parameters": _DEEPSEEK_YARN}),
    "deepseekv3-one-group": CheckpointSpec(
        "deepseekv3",
        {
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "first_k_dense_replace": 0,
        },
    ),
}

EXPERT_CASES = {**MIXTRAL, **QWEN_MOE, **OLMOE, **GPT_OSS, **GRANITE_MOE, **DEEPSEEK}
# One per architecture.
MAIN_EXPERT_CASES = [
    "mixtral",
    "qwen2moe",
    "qwen3moe",
    "olmoe",
    "gptoss",
    "granitemoe",
    "granitemoeshared",
    "deepseekv2",
    "deepseekv3",
]
