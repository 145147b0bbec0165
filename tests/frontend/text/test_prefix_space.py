"""add_prefix_space of tokenizer_config.json counts where it counts in transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from transformers import PreTrainedTokenizerFast

from splitserve.frontend.text.prefix_space import with_prefix_space
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import KINDS, write_checkpoint

TEXTS = ["hello the", " hello", "", "hello\nthe  the"]
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("given", [{}, {"add_prefix_space": True}, {"add_prefix_space": False}])
def test_byte_level_classes_add_it_as_transformers_does(tmp_path: Path, given: dict, text: str) -> None:
    directory = write_checkpoint(tmp_path, config={"tokenizer_class": "GPT2TokenizerFast", **given})
    theirs = transformers.GPT2Tokenizer.from_pretrained(directory)
    assert Tokenizer(directory).encode(text, False) == theirs(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_llamas_class_leaves_it_out_as_transformers_does(tmp_path: Path, kind: str, text: str) -> None:
    config = {"tokenizer_class": "LlamaTokenizerFast", "legacy": False, **NAMES, "add_prefix_space": False}
    directory = write_checkpoint(tmp_path, KINDS[kind](), config)
    ours, theirs = Tokenizer(directory), transformers.LlamaTokenizer.from_pretrained(directory)
    token_ids = ours.encode(text, False)
    assert token_ids == theirs(text, add_special_tokens=False).input_ids
    assert ours.decode(token_ids) == theirs.decode(token_ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_a_file_that_agrees_is_left_alone(kind: str) -> None:
    description = KINDS[kind]().to_str().encode()
    config = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": True}
    assert with_prefix_space(description, config) is description


@pytest.mark.parametrize("is_legacy", [True, False])
def test_llamas_class_adds_it_to_a_file_without_it(tmp_path: Path, is_legacy: bool) -> None:
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": is_legacy, **NAMES}
    without = write_checkpoint(tmp_path / "a", KINDS["metaspace"](), {**config, "add_prefix_space": False})
    description = with_prefix_space(
        (without / "tokenizer.json").read_bytes(), {**config, "add_prefix_space": False}
    )
    directory = write_checkpoint(tmp_path / "b", config={**config, "add_prefix_space": True})
    (directory / "tokenizer.json").write_bytes(description)
    theirs = transformers.LlamaTokenizer.from_pretrained(directory)
    for text in TEXTS:
        assert Tokenizer(directory).encode(text, False) == theirs(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
def test_the_generic_class_goes_by_the_file_as_in_transformers(
    tmp_path: Path, kind: str, value: bool
) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": value}
    directory = write_checkpoint(tmp_path, KINDS[kind](), config)
    theirs = PreTrainedTokenizerFast.from_pretrained(directory)
    assert Tokenizer(directory).encode("hello", False) == theirs("hello", add_special_tokens=False).input_ids


def test_llamas_class_leaves_a_byte_level_file_alone() -> None:
    description = KINDS["byte_level"]().to_str().encode()
    config = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": True}
    assert with_prefix_space(description, config) is description


@pytest.mark.parametrize("description", [b"", b"[]", b'{"pre_tokenizer": 7}', b"\xff", b"[" * 10_000])
def test_what_is_no_tokenizer_is_left_to_the_library(description: bytes) -> None:
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    assert with_prefix_space(description, config) is description
