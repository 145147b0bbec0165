"""What is made of a SentencePiece model encodes as the sentencepiece library does, or is refused by name.

llama.model and gemma.model were trained with sentencepiece 0.2.3 on four lines: BPE with byte fallback and
normalization "identity"; gemma.model has no dummy prefix, other ids of control symbols, and the user-defined
symbols <sep>, two line feeds, and two and three spaces. expected.json holds what the library encodes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.checkpoint.sentencepiece.model_file import parse_model
from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.errors import ModelLoadError
from splitserve.frontend.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
CASES: dict[str, list[tuple[str, list[int]]]] = json.loads((HERE / "expected.json").read_text())
KINDS = sorted(CASES)


def checkpoint(folder: Path, kind: str, **files: object) -> Path:
    shutil.copy(HERE / f"{kind}.model", folder / "tokenizer.model")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_texts_become_the_ids_of_the_library_and_texts_again(tmp_path: Path, kind: str) -> None:
    check_text_files(checkpoint(tmp_path, kind))
    tokenizer = Tokenizer(tmp_path)
    for text, ids in CASES[kind]:
        assert tokenizer.encode(text, False) == ids, text
        # In pieces it is a space.
        assert tokenizer.decode(ids, skip_special_tokens=False) == text.replace("▁", " ")


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, ["<s>", "▁shells"]),
        ({"add_bos_token": False}, ["▁shells"]),
        ({"add_eos_token": True}, ["<s>", "▁shells", "</s>"]),
    ],
)
def test_texts_begin_and_end_as_the_config_says(tmp_path: Path, config: object, names: list[str]) -> None:
    tokenizer = Tokenizer(checkpoint(tmp_path, "llama", tokenizer_config=config))
    assert [tokenizer.token_name(i) for i in tokenizer.encode("shells")] == names


def test_tokens_beside_the_model_are_added_with_their_ids(tmp_path: Path) -> None:
    named = {"1": {"content": "<begin>", "special": True}, "425": {"content": "<|im_end|>", "special": True}}
    folder = checkpoint(
        tmp_path,
        "llama",
        added_tokens={"<|im_start|>": 423},
        tokenizer_config={"added_tokens_decoder": named | {"424": {"content": "<tool>", "special": False}}},
    )
    tokenizer = Tokenizer(folder)
    ids = tokenizer.encode("<|im_start|>the<tool><|im_end|>", False, parse_special_tokens=True)
    assert [tokenizer.token_name(i) for i in ids] == ["<|im_start|>", "▁the", "<tool>", "<|im_end|>"]
    assert (ids[0], ids[-1], tokenizer.token_id("<begin>"), tokenizer.token_id("<s>")) == (423, 425, 1, None)
    assert tokenizer.special_ids >= {423, 425}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"added_tokens": {"<a>": "1"}}, "must give each token an id"),
        ({"added_tokens": {"<a>": 2**21}}, "must give each token an id"),
        ({"added_tokens": {"the": 420}}, "has two ids"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "added_tokens_decoder"),
        ({"tokenizer_config": {"added_tokens_decoder": {"420": {}}}}, "has no content"),
        ({"tokenizer_config": {"add_bos_token": "yes"}}, "add_bos_token must be true or false"),
    ],
    ids=str,
)
def test_wrong_files_beside_it_are_named(tmp_path: Path, files: dict[str, object], words: str) -> None:
    folder = checkpoint(tmp_path, "llama", **files)
    if words == "has two ids":
        pieces = parse_model((HERE / "llama.model").read_bytes(), "x").pieces
        assert "the" not in pieces
        (folder / "added_tokens.json").write_text(json.dumps({pieces[300]: 420}))
    with pytest.raises(ModelLoadError, match=words):
        check_text_files(folder)


def test_an_id_of_more_digits_than_python_reads_is_named(tmp_path: Path) -> None:
    named = {"1" * 5000: {"content": "<a>"}}
    folder = checkpoint(tmp_path, "llama", tokenizer_config={"added_tokens_decoder": named})
    with pytest.raises(ModelLoadError, match="holds '1111"):
        check_text_files(folder)


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protobuf message; sizes and values below 128."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def trainer(kind: int) -> bytes:
    return field(2, field(3, kind))


def normalizer(*fields: bytes) -> bytes:
    return field(3, field(4, 0) + b"".join(fields))


PIECES = field(1, field(1, b"a")) + field(1, field(1, b"b"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (PIECES + trainer(3) + normalizer(), "model_type is WORD, and only BPE and UNIGRAM"),
        (PIECES + trainer(9) + normalizer(), "model_type is 9, and only BPE and UNIGRAM"),
        (PIECES + trainer(1) + field(2, b"\xc0\x02\x05"), "it has no unknown piece"),
        (PIECES + trainer(1) + field(5, field(2, b"x")), "it changes letters of what is decoded"),
        (PIECES + trainer(1) + field(2, b"\xc0\x01\x01"), "treats spaces in a way of its own"),
        (PIECES + field(1, b"") + trainer(2), "it has an empty piece"),
        (PIECES + trainer(2) + normalizer(field(5, 0)), "treats spaces in a way of its own"),
        (PIECES * 2 + trainer(2) + normalizer(), "the same piece twice"),
        (trainer(2) + normalizer(), "it has no pieces"),
        (b"\x0a\x7f", "it ends within a field"),
        (b"\x0b", "a field of wire type 3"),
        (b"\xff" * 11, "a number is too long"),
        (field(1, 3), "field 1 has the wrong type"),
        (field(1, field(1, b"\xff")), "is not a SentencePiece model"),
        (field(1, b"\x15\x00\x00\xc0\x7f"), "a score is not a number"),
        (field(1, b"\x15\x00\x00\x80\x7f"), "a score is not a number"),
        (b"IQ== 0\nIg== 1\n", "a vocabulary of tiktoken that does not say how"),
    ],
    ids=str,
)
def test_what_cannot_be_converted_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelLoadError, match=words):
        check_text_files(tmp_path)


@given(st.binary(max_size=60), st.sampled_from([bytes.__add__, lambda a, b: b + a, lambda a, _: a]))
def test_any_bytes_are_a_model_or_an_error(data: bytes, joined: Callable[[bytes, bytes], bytes]) -> None:
    with contextlib.suppress(ModelLoadError):
        assert parse_model(joined(data, PIECES), "x").pieces


@pytest.mark.parametrize("name", ["hy.tiktoken", "spm.model", "vocab.bpe"])
def test_other_vocabularies_are_refused_with_the_way_to_convert_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ModelLoadError, match=f"how {name} is to be read is not known. Make it once"):
        check_text_files(tmp_path)
