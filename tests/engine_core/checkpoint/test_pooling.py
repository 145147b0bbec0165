"""How a checkpoint makes vectors, read from sentence-transformers' files, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splitserve.engine_core.checkpoint.pooling import Dense, Pooling, read_pooling
from splitserve.engine_core.errors import ModelLoadError

PREFIX = "sentence_transformers.models"
LAST = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


def modules(*names: str) -> list[dict[str, Any]]:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense"}
    return [
        {"idx": i, "name": str(i), "path": paths.get(name, name), "type": f"{PREFIX}.{name}"}
        for i, name in enumerate(names)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_files(listed: object, pooling: object = LAST, lengths: object = None) -> Path:
        (tmp_path / "modules.json").write_text(json.dumps(listed))
        (tmp_path / "1_Pooling").mkdir(exist_ok=True)
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        if lengths is not None:
            (tmp_path / "sentence_bert_config.json").write_text(json.dumps(lengths))
        return tmp_path

    return write_files


def test_without_its_files_only_the_task_decides(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, "auto") is None
    assert read_pooling(tmp_path, "generate") is None
    assert read_pooling(tmp_path, "embed") == Pooling(normalizes=True, max_tokens=0)


def test_a_model_without_a_head_can_do_nothing_else(tmp_path: Path) -> None:
    assert read_pooling(tmp_path, "auto", is_bare=True) == Pooling(normalizes=True, max_tokens=0)
    with pytest.raises(ModelLoadError, match=r"without an output head.*--task must be embed or auto"):
        read_pooling(tmp_path, "generate", is_bare=True)


def test_its_files_decide_unless_the_task_does(write: Callable[..., Path]) -> None:
    whole = write(modules("Transformer", "Pooling", "Normalize"), lengths={"max_seq_length": 512})
    assert read_pooling(whole, "auto") == read_pooling(whole, "embed") == Pooling(True, 512)
    assert read_pooling(whole, "generate") is None


def test_vectors_keep_their_length_without_the_last_module(write: Callable[..., Path]) -> None:
    assert read_pooling(write(modules("Transformer", "Pooling")), "auto") == Pooling(False, 0)


def test_the_mode_may_be_a_word(write: Callable[..., Path]) -> None:
    folder = write(modules("Transformer", "Pooling"), {"pooling_mode": "lasttoken"})
    assert read_pooling(folder, "auto") == Pooling(False, 0)


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        (LAST, "lasttoken"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "mean_sqrt_len"}, "mean_sqrt_len"),
    ],
)
def test_encoders_have_more_modes(write: Callable[..., Path], pooling: object, mode: str) -> None:
    folder = write(modules("Transformer", "Pooling"), pooling)
    found = read_pooling(folder, "auto", is_bare=True, is_encoder=True)
    assert found is not None
    assert (found.mode, found.needs_all) == (mode, mode != "lasttoken")
    if mode != "cls":
        assert read_pooling(folder, "auto") == found


def test_an_encoder_without_its_files_takes_the_mean(tmp_path: Path) -> None:
    found = read_pooling(tmp_path, "auto", is_bare=True, is_encoder=True)
    assert found == Pooling(normalizes=True, max_tokens=0, mode="mean")


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": "median"},
    ],
)
def test_other_modes_of_encoders_are_refused(write: Callable[..., Path], pooling: object) -> None:
    folder = write(modules("Transformer", "Pooling"), pooling)
    with pytest.raises(ModelLoadError, match="of an encoder must be one of lasttoken, cls, mean, max,"):
        read_pooling(folder, "auto", is_bare=True, is_encoder=True)


def write_dense(folder: Path, **fields: object) -> None:
    (folder / "2_Dense").mkdir(exist_ok=True)
    config = {"in_features": 8, "out_features": 4, "bias": True} | fields
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))


def test_dense_layers_are_read(write: Callable[..., Path]) -> None:
    folder = write(modules("Transformer", "Pooling", "Dense", "Normalize"))
    write_dense(folder, activation_function="torch.nn.modules.linear.Identity", bias=False)
    found = read_pooling(folder, "auto")
    dense = Dense(folder / "2_Dense", 8, 4, has_bias=False, is_tanh=False)
    assert found == Pooling(normalizes=True, dense=(dense,))
    write_dense(folder)
    found = read_pooling(folder, "auto")
    assert found is not None
    assert found.dense == (dense._replace(has_bias=True, is_tanh=True),)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, "activation_function must be torch"),
        ({"in_features": 0}, "in_features must be an integer from 1"),
        ({"out_features": None}, "out_features is missing"),
        ({"bias": 1}, "bias must be true or false"),
    ],
)
def test_other_dense_layers_are_refused(
    write: Callable[..., Path], fields: dict[str, object], text: str
) -> None:
    folder = write(modules("Transformer", "Pooling", "Dense"))
    write_dense(folder, **fields)
    with pytest.raises(ModelLoadError, match=text):
        read_pooling(folder, "auto")


def test_an_unset_length_is_the_model_s(write: Callable[..., Path]) -> None:
    folder = write(modules("Transformer", "Pooling"), lengths={"max_seq_length": None})
    assert read_pooling(folder, "auto") == Pooling(False, 0)


@pytest.mark.parametrize(
    ("listed", "pooling", "text"),
    [
        (modules("Transformer", "Pooling", "LayerNorm"), LAST, "got Transformer, Pooling, LayerNorm"),
        (modules("Transformer", "Pooling", "Normalize", "Dense"), LAST, "Pooling, Normalize, Dense"),
        (modules("Transformer", "Pooling", "Normalize", "Normalize"), LAST, "Normalize, Normalize"),
        (modules("Transformer", "Pooling", "Dense"), LAST, r"2_Dense/config\.json does not exist"),
        (modules("Transformer"), LAST, "got Transformer"),
        ([], LAST, "got none"),
        ({}, LAST, "must contain a list"),
        ([1], LAST, "a list of JSON objects"),
        (modules(*["Normalize"] * 20), LAST, "at most 16 modules"),
        ([{"type": 1}], LAST, "type must be a string"),
        (
            [{"type": "custom_st.Transformer"}],
            LAST,
            "must be a class of sentence_transformers, got 'custom_st",
        ),
        ([{"type": "Transformer"}], LAST, "must be a class of sentence_transformers, got 'Transformer'"),
        (modules("Transformer", "Pooling"), {"pooling_mode_cls_token": True}, "got cls_token"),
        (
            modules("Transformer", "Pooling"),
            LAST | {"pooling_mode_cls_token": True},
            "got lasttoken, cls_token",
        ),
        (modules("Transformer", "Pooling"), {}, "got none"),
        (modules("Transformer", "Pooling"), {"pooling_mode": "cls"}, "got cls"),
        (modules("Transformer", "Pooling"), {"pooling_mode": 3}, "pooling_mode must be a string"),
        (modules("Transformer", "Pooling"), LAST | {"include_prompt": False}, "include_prompt must be true"),
        (modules("Transformer", "Pooling"), [], "must contain a JSON object"),
        (modules("Transformer", "Pooling"), LAST | {"pooling_mode_new": True}, "got lasttoken, new"),
        (modules("Transformer", "Pooling"), LAST | {"pooling_mode_max_tokens": 1}, "must be true or false"),
    ],
)
def test_what_is_not_supported_is_refused(
    write: Callable[..., Path], listed: object, pooling: object, text: str
) -> None:
    with pytest.raises(ModelLoadError, match=text):
        read_pooling(write(listed, pooling), "auto")


@pytest.mark.parametrize("path", ["/etc", "../other", "1_Pooling/../../x", "a\0b", "\ud800"])
def test_no_module_lies_outside_of_the_checkpoint(write: Callable[..., Path], path: str) -> None:
    listed = modules("Transformer", "Pooling")
    listed[1]["path"] = path
    with pytest.raises(ModelLoadError, match="must name a folder of the checkpoint"):
        read_pooling(write(listed), "auto")


def test_the_model_lies_in_the_checkpoints_folder(write: Callable[..., Path]) -> None:
    listed = modules("Transformer", "Pooling")
    listed[0]["path"] = "0_Transformer"
    with pytest.raises(ModelLoadError, match="path must be empty"):
        read_pooling(write(listed), "auto")


def test_texts_are_not_changed(write: Callable[..., Path]) -> None:
    folder = write(modules("Transformer", "Pooling"), lengths={"do_lower_case": True})
    with pytest.raises(ModelLoadError, match="do_lower_case must be false or absent"):
        read_pooling(folder, "auto")


def test_a_missing_folder_is_named(write: Callable[..., Path]) -> None:
    listed = modules("Transformer", "Pooling")
    listed[1]["path"] = "elsewhere"
    with pytest.raises(ModelLoadError, match=r"elsewhere/config\.json does not exist"):
        read_pooling(write(listed), "auto")


@pytest.mark.parametrize("length", [0, -1, 2**23 + 1, "512", 1.5, True])
def test_a_length_has_a_range(write: Callable[..., Path], length: object) -> None:
    folder = write(modules("Transformer", "Pooling"), lengths={"max_seq_length": length})
    with pytest.raises(ModelLoadError, match="max_seq_length must be an integer from 1 to 8388608"):
        read_pooling(folder, "auto")
