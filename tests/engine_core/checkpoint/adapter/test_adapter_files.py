"""Adapters that cannot be served are refused by file and field, before any number is read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from splitserve.engine_core.checkpoint.adapter.config import read_adapter_config
from splitserve.engine_core.checkpoint.adapter.files import Adapter
from splitserve.engine_core.checkpoint.adapter.place import place_below
from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError

NAME = "base_model.model.layers.0.q_proj"


def write(folder: Path, tensors: dict[str, tuple[int, ...]] | None = None, **config: object) -> Path:
    """An adapter of rank 4 for one layer of 6 inputs and 8 outputs, or with other tensors and fields."""
    shapes = tensors or {f"{NAME}.lora_A.weight": (4, 6), f"{NAME}.lora_B.weight": (8, 4)}
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 6, **config})
    )
    numbers = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    save_file(numbers, folder / "adapter_model.safetensors")
    return folder


def test_a_delta_has_its_tensors_and_its_scale(tmp_path: Path) -> None:
    with Adapter.open(write(tmp_path), 4) as adapter:
        ((module, delta),) = adapter.deltas.items()
        assert module == "layers.0.q_proj"
        assert (delta.a.entry.shape, delta.b.entry.shape, delta.scale) == ((4, 6), (8, 4), 1.5)
        digest = adapter.digest()
    write(tmp_path, lora_alpha=7)
    with Adapter.open(tmp_path, 4) as other:
        assert len(digest) == len(other.digest()) == 64
        assert digest != other.digest()


@pytest.mark.parametrize(
    ("fields", "module", "rank", "scale"),
    [
        ({}, "layers.0.q_proj", 4, 1.5),
        ({"use_rslora": True}, "layers.0.q_proj", 4, 3.0),
        ({"rank_pattern": {"q_proj": 2}}, "layers.0.q_proj", 2, 3.0),
        ({"rank_pattern": {"q_proj": 2}}, "layers.0.kq_proj", 4, 1.5),
        ({"rank_pattern": {"^layers.0.q_proj": 2}}, "layers.0.q_proj", 2, 3.0),
        ({"rank_pattern": {"^q_proj": 2}}, "layers.0.q_proj", 4, 1.5),
        ({"rank_pattern": {"0.q_proj$": 1, "q_proj": 3}}, "layers.0.q_proj", 1, 6.0),
        ({"alpha_pattern": {"q_proj": 8}}, "layers.0.q_proj", 4, 2.0),
    ],
)
def test_ranks_and_scales_are_those_of_the_first_pattern_that_fits(
    tmp_path: Path, fields: dict[str, object], module: str, rank: int, scale: float
) -> None:
    config = read_adapter_config(write(tmp_path, None, **fields))
    assert (config.rank_of(module), config.scale_of(module)) == (rank, scale)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type must be LORA"),
        ({"use_dora": True}, "use_dora must be absent, got True: DoRA"),
        ({"bias": "all"}, "bias must be none, got 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save must be absent"),
        ({"lora_bias": True}, "lora_bias must be absent"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "deltas of experts"),
        ({"trainable_token_indices": [1]}, "changed embeddings"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"r": 0}, "r must be an integer from 1"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
        ({"rank_pattern": {".*q_proj": 4}}, "is a regular expression"),
        ({"rank_pattern": {"q_proj": "4"}}, "q_proj must be an integer"),
        ({"rank_pattern": [4]}, "rank_pattern must be an object"),
    ],
)
def test_what_is_not_served_is_named(tmp_path: Path, fields: dict[str, object], words: str) -> None:
    with pytest.raises(ModelLoadError) as refused:
        Adapter.open(write(tmp_path, None, **fields), 16)
    assert words in str(refused.value)
    assert "adapter_config.json" in str(refused.value)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({f"{NAME}.lora_A.weight": (4, 6)}, "has a lora_A, but no lora_B"),
        ({f"{NAME}.lora_A.weight": (3, 6), f"{NAME}.lora_B.weight": (8, 4)}, "gives the rank 4"),
        ({f"{NAME}.lora_A.weight": (4, 6), f"{NAME}.lora_B.weight": (4, 8)}, "gives the rank 4"),
        ({f"{NAME}.lora_A.weight": (4, 6, 1), f"{NAME}.lora_B.weight": (8, 4)}, "shape [4, 6, 1]"),
        ({"base_model.model.embed_tokens.lora_embedding_A": (4, 6)}, "only deltas of linear layers"),
        ({f"{NAME}.lora_magnitude_vector": (8,)}, "only deltas of linear layers"),
        ({"q_proj.weight": (8, 6)}, "none of an adapter as PEFT writes it"),
    ],
)
def test_tensors_have_to_be_pairs_of_the_rank(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], words: str
) -> None:
    with pytest.raises(ModelLoadError, match=r"adapter_model\.safetensors") as refused:
        Adapter.open(write(tmp_path, tensors), 16)
    assert words in str(refused.value)


def test_a_rank_beyond_the_limit_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"rank 4, at most 3 is served \(--max-lora-rank\)"):
        Adapter.open(write(tmp_path), 3)


def test_a_truncated_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    file = write(tmp_path) / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match="is truncated"):
        Adapter.open(tmp_path, 16)
    file.rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelLoadError, match="a pickle, which is not loaded"):
        Adapter.open(tmp_path, 16)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(ModelLoadError, match="is no adapter"):
        Adapter.open(tmp_path, 16)


def test_a_path_stays_below_the_folder(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    (allowed / "inner").mkdir(parents=True)
    other.mkdir()
    (allowed / "link").symlink_to(other)
    inner = str((allowed / "inner").resolve())
    assert place_below(str(allowed), "inner") == place_below(str(allowed), inner) == inner
    for path in ("..", "inner/../../other", str(other), "link", "link/deeper", "/"):
        with pytest.raises(InvalidRequestError, match="out of the folder") as refused:
            place_below(str(allowed), path)
        assert refused.value.status == 403
    with pytest.raises(InvalidRequestError, match="is no path"):
        place_below(str(allowed), "a\0b")
    with pytest.raises(InvalidRequestError, match="without --lora-dir") as closed:
        place_below("", "inner")
    assert closed.value.status == 403
