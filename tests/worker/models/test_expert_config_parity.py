"""As test_config_parity, for the families whose layers have experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.errors import ModelLoadError
from tests.checkpoints import CheckpointCache
from tests.worker.models.expert_cases import EXPERT_CASES
from tests.worker.models.test_config_parity import (
    FULL,
    LINEAR,
    SLIDING,
    YARN,
    Change,
    assert_as_in_transformers,
    changed,
    named,
)

FOLLOWED: list[tuple[str, Change]] = [
    ("mixtral", {"num_experts_per_tok": 1}),
    ("mixtral", {"num_experts_per_tok": "ABSENT"}),
    ("mixtral", {"sliding_window": 13}),
    ("mixtral", {"rms_norm_eps": 0.01}),
    ("mixtral", {"rope_parameters": "ABSENT", "rope_theta": 77.0}),
    ("mixtral", {"rope_parameters": YARN}),
    ("mixtral-window-one-of-two", {"sliding_window": None}),
    ("mixtral-window-one-of-two", {"sliding_window": "ABSENT"}),
    ("qwen2moe", {"num_experts_per_tok": 2}),
    ("qwen2moe", {"num_experts_per_tok": "ABSENT"}),
    ("qwen2moe", {"norm_topk_prob": True}),
    ("qwen2moe", {"use_sliding_window": True, "sliding_window": 9, "layer_types": "ABSENT"}),
    ("qwen2moe", {"use_sliding_window": True, "sliding_window": 9, "layer_types": [FULL, SLIDING]}),
    ("qwen2moe", {"rope_parameters": LINEAR}),
    ("qwen2moe-some-layers-windows", {"norm_topk_prob": "ABSENT"}),
    ("qwen2moe-some-layers-windows", {"max_window_layers": 3, "layer_types": "ABSENT"}),
    ("qwen3moe", {"norm_topk_prob": False}),
    ("qwen3moe", {"norm_topk_prob": "ABSENT"}),
    ("qwen3moe", {"num_experts_per_tok": 1}),
    ("qwen3moe", {"use_sliding_window": True, "sliding_window": 9}),
    ("qwen3moe", {"rope_parameters": {**YARN, "rope_theta": 333.0}}),
    ("olmoe", {"norm_topk_prob": True}),
    ("olmoe", {"rms_norm_eps": 0.01}),
    ("gptoss", {"num_experts_per_tok": 1}),
    ("gptoss", {"num_experts_per_tok": "ABSENT"}),
    ("gptoss", {"sliding_window": 5}),
    ("gptoss", {"sliding_window": "ABSENT"}),
    ("gptoss", {"swiglu_limit": "ABSENT"}),
    ("gptoss", {"swiglu_limit": 0.5}),
    ("gptoss", {"swiglu_alpha": 0.5}),
    ("gptoss", {"layer_types": [FULL, SLIDING]}),
    ("gptoss", {"rope_parameters": "ABSENT"}),
    ("gptoss", {"rope_parameters": None, "rope_scaling": {**YARN, "truncate": False}, "rope_theta": 77.0}),
    ("granitemoe", {"num_experts_per_tok": 1}),
    ("granitemoe", {"attention_multiplier": "ABSENT"}),
    ("granitemoe", {"embedding_multiplier": 12.0}),
    ("granitemoe", {"residual_multiplier": "ABSENT"}),
    ("granitemoe", {"logits_scaling": 8}),
    ("deepseekv2", {"routed_scaling_factor": "ABSENT"}),
    ("deepseekv2", {"num_experts_per_tok": 1}),
    ("deepseekv2", {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}),
    ("deepseekv2", {"rope_parameters": YARN}),
    ("deepseekv2-groups-yarn", {"topk_group": 3}),
    ("deepseekv2-groups-yarn", {"topk_method": "ABSENT"}),
    ("deepseekv3", {"norm_topk_prob": False}),
    ("deepseekv3", {"n_group": 2, "topk_group": 1}),
    ("deepseekv3", {"routed_scaling_factor": 1.0}),
    ("deepseekv3", {"rope_interleave": False}),
    ("deepseekv3", {"rope_parameters": "ABSENT"}),
    ("deepseekv3", {"rms_norm_eps": 0.01}),
]
HARMLESS: list[tuple[str, Change]] = [
    ("mixtral", {"router_jitter_noise": 0.5, "output_router_logits": True, "router_aux_loss_coef": 9.0}),
    ("mixtral", {"norm_topk_prob": False}),
    ("mixtral", {"layer_types": [SLIDING, SLIDING]}),
    ("qwen2moe", {"decoder_sparse_step": "ABSENT", "mlp_only_layers": "ABSENT"}),
    ("qwen2moe", {"mlp_only_layers": [5], "max_window_layers": 0}),
    ("qwen2moe", {"output_router_logits": False, "router_aux_loss_coef": 9.0}),
    ("qwen3moe", {"sliding_window": 9, "max_window_layers": 0}),
    ("qwen3moe", {"shared_expert_intermediate_size": 40, "n_shared_experts": 1}),
    ("olmoe", {"clip_qkv": None, "norm_topk_prob": "ABSENT"}),
    ("olmoe", {"sliding_window": 9}),
    ("gptoss", {"layer_types": "ABSENT", "swiglu_alpha": "ABSENT"}),
    ("gptoss", {"initial_context_length": 64, "experts_per_token": 1, "norm_topk_prob": False}),
    ("granitemoe", {"norm_topk_prob": False, "num_experts_per_tok": "ABSENT"}),
    ("granitemoe", {"shared_intermediate_size": 40}),
    ("deepseekv2", {"n_group": 2, "topk_group": 1, "moe_layer_freq": 1, "ep_size": 4, "head_dim": 99}),
    ("deepseekv2", {"topk_method": "greedy", "scoring_func": "softmax", "num_key_value_heads": "ABSENT"}),
    ("deepseekv3", {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}),
    ("deepseekv3", {"num_nextn_predict_layers": 1, "head_dim": "ABSENT", "pretraining_tp": 4}),
]
REFUSED: list[tuple[str, Change, str]] = [
    ("mixtral", {"num_local_experts": "ABSENT"}, "num_local_experts is missing"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts must be an integer from 1 to 1024, got 0"),
    ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok must be an integer from 1 to 5, got 6"),
    ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
    ("mixtral", {"hidden_act": "gelu"}, "hidden_act"),
    ("mixtral", {"model_type": "mistral"}, "model_type"),
    ("qwen2moe", {"moe_intermediate_size": "ABSENT"}, "moe_intermediate_size is missing"),
    ("qwen2moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size"),
    ("qwen2moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ("qwen2moe", {"mlp_only_layers": "all"}, "mlp_only_layers"),
    ("qwen2moe", {"mlp_only_layers": [-1]}, "mlp_only_layers: 0 must be"),
    ("qwen2moe", {"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
    ("qwen2moe", {"use_sliding_window": False, "layer_types": [SLIDING, FULL]}, "layer_types"),
    ("qwen3moe", {"num_experts": 2000}, "num_experts must be an integer from 1 to 1024"),
    ("qwen3moe", {"norm_topk_prob": "yes"}, "norm_topk_prob"),
    ("olmoe", {"num_experts_per_tok": "ABSENT"}, "num_experts_per_tok must be an integer from 1 to 6, got 8"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv must be absent"),
    ("gptoss", {"swiglu_limit": 0}, "swiglu_limit"),
    ("gptoss", {"swiglu_alpha": "1"}, "swiglu_alpha"),
    ("gptoss", {"sliding_window": None}, "layer_types"),
    ("gptoss", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ("granitemoe", {"num_local_experts": 1.5}, "num_local_experts"),
    ("granitemoeshared", {"shared_intermediate_size": -1}, "shared_intermediate_size"),
    ("granitemoe", {"architectures": ["GraniteMoeHybridForCausalLM"]}, "GraniteMoeHybridForCausalLM"),
    ("deepseekv2", {"kv_lora_rank": 40}, "kv_lora_rank must be a multiple of 32, got 40"),
    ("deepseekv2", {"kv_lora_rank": 1024}, "kv_lora_rank must be an integer from 1 to 512"),
    ("deepseekv2", {"qk_rope_head_dim": 16}, "qk_rope_head_dim must be a multiple of 32"),
    ("deepseekv2", {"v_head_dim": 20}, "v_head_dim must be a multiple of 8"),
    ("deepseekv2", {"q_lora_rank": 0}, "q_lora_rank"),
    ("deepseekv2", {"num_key_value_heads": 2}, "num_key_value_heads"),
    ("deepseekv2", {"attention_bias": True}, "attention_bias must be false"),
    ("deepseekv2", {"mlp_bias": True}, "mlp_bias must be false"),
    ("deepseekv2", {"norm_topk_prob": True}, "norm_topk_prob must be false"),
    ("deepseekv2", {"topk_method": "noaux_tc"}, "topk_method must be 'greedy' or 'group_limited_greedy'"),
    ("deepseekv2", {"scoring_func": "sigmoid"}, "scoring_func must be 'softmax'"),
    ("deepseekv2", {"topk_method": "group_limited_greedy"}, "n_group is missing"),
    ("deepseekv2", {"num_experts_per_tok": "ABSENT"}, "num_experts_per_tok is missing"),
    ("deepseekv3", {"scoring_func": "softmax"}, "scoring_func must be 'sigmoid'"),
    ("deepseekv3", {"topk_method": "greedy"}, "topk_method must be 'noaux_tc'"),
    ("deepseekv3", {"n_group": 3}, "n_group .3. must divide the 8 experts"),
    ("deepseekv3", {"n_group": 8}, "n_group .8. must divide"),
    ("deepseekv3", {"topk_group": 1}, "topk_group .1. groups of 2 do not hold 3"),
    ("deepseekv3", {"moe_layer_freq": 0}, "moe_layer_freq"),
    ("deepseekv3", {"head_dim": 98}, "head_dim must be absent or qk_rope_head_dim .32., got 98"),
    ("deepseekv3", {"model_type": "deepseek_v2"}, "model_type must be 'deepseek_v3' or 'kimi_k2'"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("case", "change"), FOLLOWED, ids=named(FOLLOWED))
def test_what_changes_the_model_in_transformers_changes_it_alike(
    case: str, change: Change, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    base = checkpoints.get(EXPERT_CASES[case])
    assert_as_in_transformers(changed(base, tmp_path, change), base, is_followed=True)


@pytest.mark.parametrize(("case", "change"), HARMLESS, ids=named(HARMLESS))
def test_what_changes_nothing_in_transformers_changes_nothing(
    case: str, change: Change, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    base = checkpoints.get(EXPERT_CASES[case])
    assert_as_in_transformers(changed(base, tmp_path, change), base, is_followed=False)


@pytest.mark.parametrize(("case", "change", "word"), REFUSED, ids=named(REFUSED))
def test_what_would_make_another_model_is_refused_by_name(
    case: str, change: Change, word: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    path = changed(checkpoints.get(EXPERT_CASES[case]), tmp_path, change)
    with pytest.raises(ModelLoadError, match=word) as raised:
        read_model_config(path, "native")
    assert "config.json" in str(raised.value)
