"""Names and row orders of GGUF files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.compare.checkpoint import config, random_weights
from benchmarks.compare.gguf_export import export, gguf_name, gguf_path, interleave_heads
from benchmarks.compare.perplexity import numbers_losses, weights_of
from benchmarks.compare.shapes import SHAPES, shape_of
from benchmarks.perplexity import Scorer, Text, perplexity_of
from tests.benchmarks.compare.conftest import SMALL


def test_every_weight_has_a_name_of_its_own() -> None:
    names = [gguf_name(name) for name in random_weights(SMALL, 0)]
    assert len(set(names)) == len(names)
    assert {"token_embd.weight", "output_norm.weight", "blk.1.attn_k_norm.weight"} <= set(names)


def test_an_unknown_weight_is_not_given_a_name() -> None:
    with pytest.raises(KeyError):
        gguf_name("model.layers.0.mlp.experts.weight")


def test_partners_of_a_rotation_become_neighbours_within_their_head() -> None:
    rows = np.arange(16, dtype=np.float32)[:, None]
    assert interleave_heads(rows, 2)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_read_from_its_config(name: str) -> None:
    shape = SHAPES[name]
    assert shape_of(config(shape)) == shape._replace(tokenizer_size=shape.vocab_size)


def test_other_models_have_no_shape() -> None:
    with pytest.raises(ValueError, match="'mamba' is neither llama, qwen3 nor"):
        shape_of({**config(SMALL), "model_type": "mamba"})


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@torch.inference_mode()
def test_a_file_has_the_numbers_and_the_perplexity_of_its_checkpoint(
    architecture: Literal["llama", "qwen3"], small_model: Path, tmp_path: Path
) -> None:
    shape = SMALL._replace(architecture=architecture)
    model, weights = tmp_path / "mini", random_weights(shape, 0)
    shutil.copytree(small_model, model)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    (model / "config.json").write_text(json.dumps({**config(shape), "rms_norm_eps": 1e-3}))
    export(model, "bf16")
    path = gguf_path(model, "bf16")
    found = dict(weights_of(path, config(shape)))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name].float()) for name in weights)
    texts = [Text(torch.arange(300, 340, dtype=torch.int32), torch.arange(40) > 20)]
    expected = perplexity_of(texts, numbers_losses(model, path, texts))
    assert Scorer(path, "none", torch.float32).perplexity(texts) == pytest.approx(expected, rel=1e-5)
