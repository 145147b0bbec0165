"""Rotary parameters in both layouts, and frequencies against those of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.rotary import cos_sin_table
from tests.engine_core.checkpoint.test_model_config import LLAMA
from tests.worker.models.dense_cases import LONGROPE

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
SCALINGS = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 4.0},
    LLAMA3,
    {**LLAMA3, "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0},
    YARN,
    {**YARN, "attention_factor": 1.5},
    {**YARN, "mscale": 0.8, "mscale_all_dim": 0.4},
    {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    {**YARN, "factor": 1.0},
]


def read(path: Path, **changes: object) -> ModelConfig:
    (path / "config.json").write_text(json.dumps({**LLAMA, "head_dim": 24, **changes}))
    return read_model_config(path)


def rope_of(config: ModelConfig) -> RopeConfig:
    (rope,) = set(config.ropes)
    assert rope is not None
    return rope


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_table_is_bit_for_bit_that_of_transformers(scaling: dict[str, object], tmp_path: Path) -> None:
    config = read(tmp_path, rope_theta=5000.0, rope_scaling=scaling)
    table = cos_sin_table(rope_of(config), config.head_dim, 512)

    reference = LlamaConfig(
        hidden_size=48,
        num_attention_heads=6,
        head_dim=24,
        max_position_embeddings=512,
        rope_parameters={**scaling, "rope_theta": 5000.0},
    )
    cos, sin = LlamaRotaryEmbedding(reference)(torch.zeros(1), torch.arange(512)[None])
    assert torch.equal(table, torch.cat((cos[0, :, :12], sin[0, :, :12]), dim=-1))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_old_and_new_layout_mean_the_same(scaling: dict[str, object], tmp_path: Path) -> None:
    old_scaling = {"type" if name == "rope_type" else name: value for name, value in scaling.items()}
    new = rope_of(read(tmp_path, rope_parameters={**scaling, "rope_theta": 77.0}))
    assert new.theta == 77.0
    assert rope_of(read(tmp_path, rope_theta=77.0, rope_scaling=scaling)) == new
    assert rope_of(read(tmp_path, rope_theta=77.0, rope_scaling=old_scaling)) == new
    assert rope_of(read(tmp_path, rope_theta=77.0, rope_parameters=scaling)) == new


@pytest.mark.parametrize("max_len", [32, 33, 512])
def test_longrope_has_the_factors_of_the_context_that_is_served(max_len: int, tmp_path: Path) -> None:
    changes = {"original_max_position_embeddings": 32, "rope_parameters": LONGROPE, "head_dim": 24}
    model = read(tmp_path, architectures=["Phi3ForCausalLM"], **changes)
    table = cos_sin_table(rope_of(model), 18, max_len)

    sizes = {"hidden_size": 48, "num_attention_heads": 2, "max_position_embeddings": 512}
    reference = Phi3Config(
        **sizes, original_max_position_embeddings=32, rope_parameters=dict(LONGROPE), pad_token_id=None
    )
    cos, sin = Phi3RotaryEmbedding(reference)(torch.zeros(1), torch.arange(max_len)[None])
    assert torch.equal(table, torch.cat((cos[0, :, :9], sin[0, :, :9]), dim=-1))


def test_yarn_serves_the_stretched_context(tmp_path: Path) -> None:
    assert read(tmp_path, rope_scaling={"type": "yarn", "factor": 4.0}).max_model_len == 2048
    assert read(tmp_path, rope_scaling=YARN).max_model_len == 512
    for rope_type in ("linear", "dynamic"):
        assert read(tmp_path, rope_scaling={"type": rope_type, "factor": 4.0}).max_model_len == 512


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "longrope"),
        ({"type": "su", "factor": 2.0}, "su"),
        ({"rope_type": 3}, "rope_type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor"),
        ({"rope_type": "dynamic", "factor": float("nan")}, "factor"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "high_freq_factor"),
        ({**LLAMA3, "low_freq_factor": 0.0}, "low_freq_factor"),
        ({**LLAMA3, "original_max_position_embeddings": 0}, "original_max_position_embeddings"),
        ({**YARN, "beta_fast": 0.5}, "beta_fast"),
        ({**YARN, "attention_factor": -1.0}, "attention_factor"),
        ({**YARN, "rope_theta": 1.0}, "rope_theta"),
        ({**YARN, "truncate": 1}, "truncate"),
        ({**YARN, "factor": 1e6}, "factor"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention"),
        ({"rope_type": "default", "partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ("linear", "rope_scaling"),
    ],
)
def test_bad_rope_parameters_are_refused_by_name(scaling: object, field: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=field):
        read(tmp_path, rope_scaling=scaling)
