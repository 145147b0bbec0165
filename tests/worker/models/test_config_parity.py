"""One field of a config.json changed at a time: logits stay those of transformers, or the field is refused.

Each row names an architecture and what is changed. FOLLOWED changes what the model computes, HARMLESS does
not, in transformers as here; what is REFUSED would compute something else there, or nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.errors import ModelLoadError
from tests.checkpoints import CheckpointCache, CheckpointSpec, load_reference
from tests.worker.models.cases import prompt
from tests.worker.models.driver import Driver

Change = Mapping[str, object]

BASES = {
    "llama": CheckpointSpec("llama", {"head_dim": 24}),
    "mistral": CheckpointSpec("mistral", {"head_dim": 24, "sliding_window": 13}),
    "qwen2": CheckpointSpec(
        "qwen2", {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}
    ),
    "qwen3": CheckpointSpec("qwen3"),
    "gpt2": CheckpointSpec("gpt2"),
}
# One shorter and one longer than every window and trained context below.
PROMPTS = (9, 120)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
FULL, SLIDING = "full_attention", "sliding_attention"

FOLLOWED: list[tuple[str, Change]] = [
    # Two sets of rotary parameters: the base has `rope_parameters` of the default type.
    ("llama", {"rope_scaling": YARN}),
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": YARN}),
    ("llama", {"rope_scaling": YARN, "rope_parameters": {**LINEAR, "rope_theta": 333.0}}),
    ("llama", {"rope_scaling": {}, "rope_parameters": YARN}),
    ("llama", {"rope_scaling": None, "rope_parameters": LINEAR}),
    ("llama", {"rope_scaling": LINEAR, "rope_theta": 77.0}),
    ("llama", {"rope_scaling": {**LINEAR, "rope_theta": 333.0}, "rope_theta": 77.0}),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": None}),
    ("llama", {"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 4.0}}),
    ("qwen3", {"rope_scaling": YARN}),
    # The trained context at the top level.
    ("llama", {"rope_parameters": YARN, "original_max_position_embeddings": 48}),
    ("llama", {"rope_parameters": LLAMA3, "original_max_position_embeddings": 256}),
    ("qwen2", {"rope_scaling": YARN, "original_max_position_embeddings": 48}),
    ("llama", {"rope_parameters": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 64}),
    ("mistral", {"rope_parameters": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": "ABSENT"}),
    ("qwen2", {"rope_parameters": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": "ABSENT"}),
    # The parameters of YaRN.
    ("llama", {"rope_parameters": {**YARN, "factor": None}}),
    ("llama", {"rope_parameters": {**YARN, "truncate": None}}),
    ("llama", {"rope_parameters": {**YARN, "truncate": False}}),
    ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.0}}),
    ("llama", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}}),
    ("llama", {"rope_parameters": {**YARN, "mscale": 0, "mscale_all_dim": 1.0}}),
    ("llama", {"rope_parameters": {**YARN, "beta_fast": 16, "beta_slow": 2}}),
    # Windows.
    ("mistral", {"layer_types": [SLIDING, FULL]}),
    ("mistral", {"layer_types": [FULL, FULL]}),
    ("mistral", {"layer_types": ["attention", SLIDING]}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": "ABSENT"}),
    ("qwen2", {"use_sliding_window": False, "layer_types": "ABSENT"}),
    ("qwen2", {"layer_types": [SLIDING, FULL]}),
    ("qwen2", {"layer_types": "ABSENT", "max_window_layers": 0}),
    ("qwen2", {"layer_types": "ABSENT", "max_window_layers": "ABSENT"}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 9, "layer_types": [FULL, SLIDING]}),
    # Other names of sizes, and what else changes the numbers.
    ("gpt2", {"num_attention_heads": 3}),
    ("gpt2", {"num_hidden_layers": 1}),
    ("gpt2", {"scale_attn_weights": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"activation_function": "gelu"}),
    ("gpt2", {"layer_norm_epsilon": 0.01}),
    ("llama", {"rms_norm_eps": 0.01}),
    ("llama", {"num_hidden_layers": 1}),
]
HARMLESS: list[tuple[str, Change]] = [
    ("llama", {"rope_parameters": "ABSENT", "rope_theta": 10000.0}),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
    ("llama", {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 4, 4]}}),
    ("llama", {"original_max_position_embeddings": 32}),
    ("llama", {"sliding_window": 13}),
    ("llama", {"layer_types": [FULL, FULL]}),
    ("llama", {"hidden_act": "swish"}),
    ("llama", {"pretraining_tp": 2}),
    ("llama", {"attention_dropout": 0.9}),
    ("llama", {"is_causal": True}),
    ("llama", {"is_decoder": False, "is_encoder_decoder": True}),
    ("llama", {"chunk_size_feed_forward": 2}),
    ("llama", {"pad_token_id": 5, "num_labels": 5}),
    ("llama", {"use_cache": False, "output_attentions": True}),
    ("llama", {"attn_logit_softcapping": 1.0, "logit_scale": 2.0, "query_pre_attn_scalar": 4}),
    ("mistral", {"layer_types": None}),
    ("mistral", {"layer_types": [SLIDING, SLIDING]}),
    ("mistral", {"use_sliding_window": False, "max_window_layers": 1}),
    ("mistral", {"attention_bias": True}),
    ("qwen2", {"attention_bias": False, "layer_types": "ABSENT"}),
    ("qwen3", {"sliding_window": 9, "max_window_layers": 0}),
    ("gpt2", {"reorder_and_upcast_attn": True}),
    ("gpt2", {"activation_function": "gelu_pytorch_tanh"}),
    ("gpt2", {"n_inner": 192, "n_ctx": 16}),
    (
        "gpt2",
        {"n_embd": "ABSENT", "hidden_size": 48, "n_positions": "ABSENT", "max_position_embeddings": 512},
    ),
    ("gpt2", {"resid_pdrop": 0.9, "embd_pdrop": 0.9, "attn_pdrop": 0.9, "summary_type": "mean"}),
    ("gpt2", {"rope_parameters": {**YARN, "rope_theta": 77.0}}),
]
REFUSED: list[tuple[str, Change, str]] = [
    ("llama", {"model_type": "qwen3"}, "model_type"),
    ("mistral", {"model_type": "llama"}, "model_type"),
    ("llama", {"is_causal": False}, "is_causal"),
    ("gpt2", {"is_causal": None}, "is_causal"),
    ("llama", {"layer_types": [SLIDING, FULL], "sliding_window": 13}, "layer_types"),
    ("llama", {"layer_types": [FULL]}, "layer_types"),
    ("mistral", {"layer_types": [SLIDING, FULL], "sliding_window": None}, "layer_types"),
    ("qwen2", {"use_sliding_window": False, "layer_types": [SLIDING, FULL]}, "layer_types"),
    ("llama", {"per_layer_config": {"0": {"rms_norm_eps": 0.1}}}, "per_layer_config"),
    (
        "llama",
        {"rope_parameters": {**YARN, "factor": None}, "original_max_position_embeddings": 1024},
        "factor",
    ),
    ("llama", {"rope_scaling": {**YARN, "rope_type": "longrope"}}, "longrope"),
    ("llama", {"rope_scaling": {"type": "mrope", "mrope_section": [4, 4, 4]}}, "mrope"),
    ("llama", {"rope_scaling": {FULL: LINEAR, SLIDING: YARN}}, FULL),
    ("llama", {"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("gpt2", {"activation_function": "relu"}, "activation_function"),
    ("gpt2", {"num_attention_heads": 7}, "num_attention_heads"),
    ("qwen2", {"num_key_value_heads": "ABSENT"}, "num_key_value_heads"),
    ("llama", {"compression_config": {"format": "pack-quantized"}}, "compression_config"),
]


def changed(base: Path, target: Path, change: Change) -> Path:
    """Make a checkpoint with the weights of another and a changed config.json."""
    config = json.loads((base / "config.json").read_text())
    values = {name: value for name, value in {**config, **change}.items() if value != "ABSENT"}
    (target / "config.json").write_text(json.dumps(values))
    (target / "model.safetensors").symlink_to(base / "model.safetensors")
    return target


def prompts() -> list[list[int]]:
    return [prompt(331, length) for length in PROMPTS]


@functools.cache
def unchanged_logits(path: Path) -> list[torch.Tensor]:
    return reference_logits(path)


def reference_logits(path: Path) -> list[torch.Tensor]:
    model = load_reference(path, torch.float32)
    with torch.inference_mode():
        return [model(torch.tensor([tokens]), use_cache=False).logits[0] for tokens in prompts()]


def differ(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return not all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(ours, theirs, strict=True))


def assert_as_in_transformers(path: Path, base: Path, *, is_followed: bool) -> None:
    theirs = reference_logits(path)
    assert differ(theirs, unchanged_logits(base)) == is_followed, "the row belongs to another table"
    driver = Driver(path)
    assert not differ([driver.prefill_logits(tokens) for tokens in prompts()], theirs)


def named(rows: list[tuple[str, Change]] | list[tuple[str, Change, str]]) -> list[str]:
    return [f"{row[0]}-{'-'.join(row[1])}" for row in rows]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("architecture", "change"), FOLLOWED, ids=named(FOLLOWED))
def test_what_changes_the_model_in_transformers_changes_it_alike(
    architecture: str, change: Change, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    base = checkpoints.get(BASES[architecture])
    assert_as_in_transformers(changed(base, tmp_path, change), base, is_followed=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("architecture", "change"), HARMLESS, ids=named(HARMLESS))
def test_what_changes_nothing_in_transformers_changes_nothing(
    architecture: str, change: Change, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    base = checkpoints.get(BASES[architecture])
    assert_as_in_transformers(changed(base, tmp_path, change), base, is_followed=False)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_head_of_its_own_is_used_though_the_config_ties_it(
    architecture: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    base = checkpoints.get(CheckpointSpec(architecture, {"tie_word_embeddings": False}))
    path = changed(base, tmp_path, {"tie_word_embeddings": True})
    assert_as_in_transformers(path, base, is_followed=False)


@pytest.mark.parametrize(("architecture", "change", "word"), REFUSED, ids=named(REFUSED))
def test_what_would_make_another_model_is_refused_by_name(
    architecture: str, change: Change, word: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    path = changed(checkpoints.get(BASES[architecture]), tmp_path, change)
    with pytest.raises(ModelLoadError, match=word) as raised:
        read_model_config(path)
    assert "config.json" in str(raised.value)
    assert "\n" not in str(raised.value)
