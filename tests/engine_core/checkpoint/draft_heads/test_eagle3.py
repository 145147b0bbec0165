"""An EAGLE-3 head says which layers it reads and which tokens it knows; what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.draft_check import read_draft_config
from splitserve.engine_core.errors import ConfigError, ModelLoadError
from tests.engine_core.checkpoint.test_draft_check import write as write_mistral
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.speculation.draft_heads.head_checkpoint import CONFIG, head_weights, token_ids, write_head


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return read_model_config(write_tiny_llama(tmp_path_factory.mktemp("model"))).limited_to(100)


def read(folder: Path, model: ModelConfig, **changes: Any) -> ModelConfig:
    return read_draft_config(str(write_head(folder, **changes)), model, "eagle3")


def test_a_head_reads_what_its_config_says(model: ModelConfig, tmp_path: Path) -> None:
    config = read(tmp_path / "head", model)
    head = config.draft_head
    assert (config.family, config.num_layers, config.max_model_len) == ("eagle3", 1, 100)
    assert head is not None
    assert (head.layer, head.read_layers, head.read_size) == ("midlayer", (1, 2), 64)
    assert head.token_ids == tuple(token_ids().tolist())
    assert (head.has_own_embedding, head.has_own_head) == (False, True)
    # As speculators write it.
    nested = {**CONFIG, "transformer_layer_config": CONFIG, "architectures": ["Eagle3Speculator"]}
    assert read(tmp_path / "nested", model, **nested).draft_head == head


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"eagle_aux_hidden_state_layer_ids": None}, (2, 1, 1)),
        ({"eagle_aux_hidden_state_layer_ids": [1]}, (1,)),
        (
            {
                "eagle_aux_hidden_state_layer_ids": None,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]},
            },
            (1, 2),
        ),
    ],
)
def test_layers_are_named_in_three_ways(
    changes: dict[str, Any], layers: tuple[int, ...], model: ModelConfig, tmp_path: Path
) -> None:
    head = read(tmp_path / "head", model, **changes).draft_head
    assert head is not None
    assert head.read_layers == layers


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["LlamaForCausalLM"]},
            "architectures names 'LlamaForCausalLM'; a head for",
        ),
        (
            {"architectures": ["LlamaForCausalLMEagle"]},
            "names 'LlamaForCausalLMEagle'; a head for the",
        ),
        ({"vocab_size": 321}, "has another vocabulary than .*: 321 tokens instead of 320"),
        ({"hidden_size": 72}, "reads hidden states of another size than .* has: 72 instead of 64"),
        ({"target_hidden_size": 128}, "reads hidden states of another size than .* has: 128 instead of 64"),
        (
            {"hidden_size": 72, "target_hidden_size": 64},
            "missing tensor 'embed_tokens.weight', and that of .* has another size: 64 instead of 72",
        ),
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1 for an EAGLE-3 head, got 2"),
        ({"draft_vocab_size": 199}, r"'d2t' must be I64 of shape \[199\], got I64 of shape \[200\]"),
        ({"eagle_aux_hidden_state_layer_ids": [3]}, "must be an integer from 1 to 2, got 3"),
        ({"eagle_aux_hidden_state_layer_ids": []}, "must name 1 to 16 layers"),
    ],
)
def test_what_does_not_fit_is_named(
    changes: dict[str, Any], words: str, model: ModelConfig, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ModelLoadError), match=words):
        read(tmp_path / "head", model, **changes)


@pytest.mark.parametrize("offset", [-1, 200], ids=["negative", "beyond"])
def test_a_vocabulary_lies_within_the_models(offset: int, model: ModelConfig, tmp_path: Path) -> None:
    weights = head_weights()
    weights["d2t"] = torch.full((200,), offset)
    with pytest.raises(ModelLoadError, match="'d2t' must give each of the head's 200 tokens one of its own"):
        read(tmp_path / "head", model, weights=weights)


def test_models_whose_blocks_or_layers_are_others_have_no_heads(model: ModelConfig, tmp_path: Path) -> None:
    windowed = read_model_config(write_mistral(tmp_path / "windowed", sliding_window=8))
    with pytest.raises(ConfigError, match=r"cannot draft for .*/windowed: its layers have a sliding window"):
        read(tmp_path / "head", windowed)
