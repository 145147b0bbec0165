"""As test_config_parity, for the dense families that are Llama's layers with other traits."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.errors import ModelLoadError
from tests.checkpoints import CheckpointCache
from tests.worker.models.dense_cases import DENSE_CASES, LONGROPE
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


def longrope(**changes: object) -> Change:
    return {"rope_parameters": {**LONGROPE, **changes}}


# As the first Phi-3 had it.
SU = {**LONGROPE, "rope_type": "su", "original_max_position_embeddings": 4096}

FOLLOWED: list[tuple[str, Change]] = [
    ("granite-multipliers", {"attention_multiplier": "ABSENT"}),
    ("granite-multipliers", {"embedding_multiplier": 12.0}),
    ("granite-multipliers", {"residual_multiplier": "ABSENT"}),
    ("granite-multipliers", {"logits_scaling": 8}),
    ("smollm3-interval", {"no_rope_layers": [0, 0, 1]}),
    ("smollm3-interval", {"no_rope_layers": None, "no_rope_layer_interval": "ABSENT"}),
    ("smollm3-interval", {"rope_parameters": "ABSENT", "rope_theta": 333.0}),
    ("smollm3-interval", {"layer_types": "ABSENT", "use_sliding_window": True, "sliding_window": 9}),
    ("smollm3-windows", {"no_rope_layers": [1, 1, 1]}),
    ("smollm3-windows", {"layer_types": [FULL, FULL, FULL]}),
    ("phi3-default", {"sliding_window": None}),
    ("phi3-default", {"rope_parameters": {"rope_type": "default"}, "partial_rotary_factor": 0.5}),
    ("phi3-default", {"rms_norm_eps": 0.01}),
    ("phi3-longrope-short", longrope(rope_type="default")),
    ("phi3-longrope-short", longrope(factor=4.0)),
    ("phi3-longrope-short", longrope(attention_factor=1.5)),
    ("phi3-longrope-short", longrope(rope_theta=333.0)),
    (
        "phi3-longrope-short",
        {"rope_parameters": None, "rope_scaling": {**SU, "rope_theta": 77.0}},
    ),
    ("olmo2", {"rope_parameters": "ABSENT", "rope_theta": 77.0}),
    ("olmo2", {"rms_norm_eps": 0.01}),
    ("olmo3", {"rope_theta": 77.0, "rope_parameters": "ABSENT"}),
    ("olmo3", {"rope_scaling": YARN, "rope_parameters": "ABSENT"}),
    ("olmo3", {"rope_scaling": YARN}),
    ("olmo3", {"layer_types": [FULL] * 4}),
    ("olmo3", {"layer_types": [SLIDING] * 4}),
    ("olmo3", {"sliding_window": "ABSENT"}),
    ("olmo3-local-theta", {"rope_parameters": "ABSENT"}),
    ("olmo3-local-theta", {"rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 100.0}}}),
    ("olmo3-local-theta", {"rope_parameters": {FULL: None, SLIDING: LINEAR}}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"attn_logit_softcapping": "ABSENT"}),
    ("gemma2", {"attn_logit_softcapping": 1.0}),
    ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"final_logit_softcapping": "ABSENT"}),
    ("gemma2", {"layer_types": [FULL, SLIDING]}),
    ("gemma2", {"sliding_window": "ABSENT"}),
    ("gemma2", {"rope_parameters": "ABSENT", "rope_theta": 77.0}),
    ("gemma3", {"query_pre_attn_scalar": "ABSENT"}),
    ("gemma3", {"rope_parameters": "ABSENT", "rope_theta": 77.0}),
    ("gemma3", {"rope_parameters": "ABSENT", "rope_local_base_freq": 77.0}),
    ("gemma3", {"rope_parameters": "ABSENT", "rope_scaling": LINEAR}),
    ("gemma3", {"layer_types": "ABSENT", "sliding_window_pattern": "ABSENT"}),
    ("gemma3", {"layer_types": "ABSENT", "sliding_window_pattern": 3}),
    ("gemma3", {"sliding_window": 5}),
    ("gemma3", {"final_logit_softcapping": 3.0}),
    ("gemma3", {"rms_norm_eps": 0.01}),
    ("gemma3-untied-capped", {"final_logit_softcapping": None}),
    ("glm", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}),
    ("glm", {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}),
    ("glm", {"rope_parameters": None, "partial_rotary_factor": 0.25}),
    ("glm4-yarn", {"rope_parameters": LINEAR}),
    ("glm4-yarn", {"rms_norm_eps": 0.01}),
    ("cohere", {"logit_scale": "ABSENT"}),
    ("cohere", {"layer_norm_eps": 0.1}),
    ("cohere", {"rope_parameters": "ABSENT", "rope_theta": 77.0}),
    ("cohere2", {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}),
    ("cohere2", {"layer_types": [FULL, SLIDING, SLIDING]}),
    ("cohere2", {"layer_types": "ABSENT", "sliding_window_pattern": "ABSENT"}),
    ("cohere2", {"sliding_window": 5}),
    ("cohere2", {"logit_scale": 0.25}),
    ("starcoder2-window", {"sliding_window": None}),
    ("starcoder2-window", {"norm_epsilon": 0.1}),
    ("starcoder2-window", {"rope_parameters": "ABSENT", "rope_theta": 77.0}),
]
HARMLESS: list[tuple[str, Change]] = [
    ("granite-multipliers", {"sliding_window": 5}),
    ("smollm3-interval", {"rope_parameters": "ABSENT"}),
    ("smollm3-interval", {"no_rope_layer_interval": 4}),
    ("smollm3-windows", {"max_window_layers": 0}),
    ("phi3-default", {"original_max_position_embeddings": 64, "rms_norm_eps": "ABSENT"}),
    ("phi3-default", {"attention_bias": True}),
    ("phi3-longrope-short", longrope(original_max_position_embeddings=32)),
    ("phi3-longrope-short", longrope(rope_type="yarn")),
    ("phi3-longrope-short", {"original_max_position_embeddings": "ABSENT"}),
    ("olmo3", {"layer_types": "ABSENT"}),
    ("olmo3", {"rope_parameters": "ABSENT"}),
    ("olmo3", {"rope_scaling": {"rope_theta": 5e5}, "original_max_position_embeddings": 64}),
    ("gemma2", {"layer_types": "ABSENT"}),
    ("gemma2", {"sliding_window_pattern": 1}),
    ("gemma3", {"attn_logit_softcapping": 5.0}),
    ("gemma3", {"rope_parameters": "ABSENT"}),
    ("gemma3", {"hidden_act": "silu"}),
    ("gemma3", {"hidden_activation": "gelu_new", "cache_implementation": "hybrid"}),
    ("gemma3-untied-capped", {"sliding_window_pattern": 1}),
    ("glm", {"rope_parameters": "ABSENT"}),
    ("glm", {"rms_norm_eps": "ABSENT", "head_dim": 16}),
    ("glm4-yarn", {"sliding_window": 5}),
    ("cohere", {"rope_parameters": "ABSENT", "sliding_window": 5}),
    ("cohere", {"rms_norm_eps": 0.1}),
    ("cohere", {"use_qk_norm": False}),
    ("cohere2", {"use_qk_norm": True, "rope_parameters": "ABSENT"}),
    ("starcoder2-window", {"residual_dropout": 0.9, "embedding_dropout": 0.9}),
    ("starcoder2-window", {"hidden_act": "gelu_new", "norm_epsilon": "ABSENT"}),
    ("starcoder2-window", {"mlp_type": "default", "layer_types": [FULL, SLIDING]}),
    ("seedoss", {"head_dim": 16, "residual_dropout": 0.5, "pretraining_tp": 2}),
]
REFUSED: list[tuple[str, Change, str]] = [
    ("granite-multipliers", {"residual_multiplier": 0}, "residual_multiplier"),
    (
        "granite-multipliers",
        {"embedding_multiplier": "12"},
        "embedding_multiplier must be a number from 1e-06",
    ),
    ("granite-multipliers", {"logits_scaling": 0.0}, "logits_scaling"),
    ("granite-multipliers", {"attention_multiplier": -1}, "attention_multiplier"),
    ("granite-multipliers", {"attention_multiplier": float("nan")}, "attention_multiplier"),
    (
        "granite-multipliers",
        {"architectures": ["GraniteMoeHybridForCausalLM"]},
        "GraniteMoeHybridForCausalLM",
    ),
    ("granite-multipliers", {"hidden_act": "gelu"}, "hidden_act"),
    ("smollm3-interval", {"no_rope_layers": [1, 1]}, "no_rope_layers must have 0 or 1 for each of 3 layers"),
    ("smollm3-interval", {"no_rope_layers": [1, 1, 2]}, "no_rope_layers: 2 must be an integer from 0 to 1"),
    ("smollm3-interval", {"no_rope_layers": "all"}, "no_rope_layers"),
    ("smollm3-interval", {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
    ("smollm3-windows", {"use_sliding_window": False}, "layer_types"),
    (
        "phi3-longrope-short",
        longrope(long_factor=[1.0] * 8),
        "long_factor must have 9",
    ),
    (
        "phi3-longrope-short",
        longrope(short_factor=None),
        "short_factor must have 9",
    ),
    (
        "phi3-longrope-short",
        longrope(short_factor=[0] * 9),
        "short_factor: 0 must be",
    ),
    ("phi3-longrope-short", longrope(short_factor="1"), "short_factor"),
    ("phi3-longrope-short", longrope(rope_type="linear"), "rope_type"),
    ("phi3-longrope-short", {"original_max_position_embeddings": 1}, "original_max_position_embeddings"),
    (
        "phi3-longrope-short",
        longrope(partial_rotary_factor=0.9),
        "partial_rotary_factor",
    ),
    (
        "phi3-longrope-short",
        longrope(partial_rotary_factor=0),
        "partial_rotary_factor",
    ),
    ("phi3-longrope-short", longrope(factor=0.5), "factor"),
    ("phi3-default", {"sliding_window": 0}, "sliding_window"),
    ("phi3-default", {"hidden_act": "gelu"}, "hidden_act"),
    ("olmo3", {"rope_parameters": LINEAR}, FULL),
    ("olmo3", {"rope_scaling": {"type": "linear", "factor": 4.0}}, "type must be called rope_type"),
    ("olmo3", {"rope_scaling": {**LINEAR, "factor": 0.5}}, "factor"),
    ("olmo3", {"rope_parameters": {SLIDING: {"rope_theta": 0}}}, "rope_theta"),
    ("olmo3", {"rope_parameters": {FULL: {"rope_type": "longrope"}}}, "longrope"),
    ("olmo3", {"sliding_window": None}, "layer_types"),
    ("olmo2", {"layer_types": [SLIDING, FULL]}, "layer_types"),
    ("olmo2", {"hidden_act": "relu"}, "hidden_act"),
    ("gemma2", {"attn_logit_softcapping": -50.0}, "attn_logit_softcapping must be a number from 0.001"),
    ("gemma2", {"attn_logit_softcapping": True}, "attn_logit_softcapping"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma2", {"sliding_window": None}, "layer_types"),
    ("gemma3", {"hidden_activation": "silu"}, "hidden_activation must be gelu_pytorch_tanh or gelu_new"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"final_logit_softcapping": 0}, "final_logit_softcapping must be a number from 0.001"),
    ("gemma3", {"final_logit_softcapping": "30"}, "final_logit_softcapping"),
    ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
    ("gemma3", {"rope_local_base_freq": 0}, "rope_local_base_freq"),
    ("gemma3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, FULL),
    ("gemma3", {"model_type": "gemma3"}, "model_type"),
    ("gemma3", {"architectures": ["Gemma3ForConditionalGeneration"]}, "Gemma3ForConditionalGeneration"),
    ("glm", {"rope_parameters": {"partial_rotary_factor": 0.1}}, "turns 1 elements of a head of 16"),
    ("glm", {"rope_parameters": None, "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    ("glm", {"attention_bias": "yes"}, "attention_bias"),
    ("glm", {"model_type": "glm4"}, "model_type"),
    ("glm", {"architectures": ["Glm4MoeForCausalLM"]}, "Glm4MoeForCausalLM"),
    ("glm4-yarn", {"head_dim": 12}, "head_dim"),
    ("cohere", {"use_qk_norm": True}, "use_qk_norm must be false"),
    ("cohere", {"logit_scale": 0}, "logit_scale must be a number from 1e-06 to 1e"),
    ("cohere", {"layer_norm_eps": -1}, "layer_norm_eps"),
    ("cohere", {"layer_types": [SLIDING, FULL]}, "layer_types"),
    ("cohere2", {"sliding_window": None}, "layer_types"),
    ("cohere2", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
    ("starcoder2-window", {"hidden_act": "relu"}, "hidden_act"),
    ("starcoder2-window", {"use_bias": 1}, "use_bias"),
    ("starcoder2-window", {"norm_epsilon": 1.0}, "norm_epsilon must be a number from 0 to 0.1"),
    ("seedoss", {"attention_out_bias": "no"}, "attention_out_bias must be true or false"),
    ("seedoss", {"mlp_bias": 0}, "mlp_bias"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("case", "change"), FOLLOWED, ids=named(FOLLOWED))
def test_what_changes_the_model_in_transformers_changes_it_alike(
    case: str, change: Change, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    base = checkpoints.get(DENSE_CASES[case])
    assert_as_in_transformers(changed(base, tmp_path, change), base, is_followed=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("case", "change"), HARMLESS, ids=named(HARMLESS))
def test_what_changes_nothing_in_transformers_changes_nothing(
    case: str, change: Change, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    base = checkpoints.get(DENSE_CASES[case])
    assert_as_in_transformers(changed(base, tmp_path, change), base, is_followed=False)


@pytest.mark.parametrize(("case", "change", "word"), REFUSED, ids=named(REFUSED))
def test_what_would_make_another_model_is_refused_by_name(
    case: str, change: Change, word: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    path = changed(checkpoints.get(DENSE_CASES[case]), tmp_path, change)
    with pytest.raises(ModelLoadError, match=word) as raised:
        read_model_config(path, "native")
    assert "config.json" in str(raised.value)
