"""Vocabularies of ranked bytes give the ids of tiktoken, over random texts, or are refused by name."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.checkpoint.tokenizer import tiktoken
from splitserve.engine_core.checkpoint.tokenizer.splits import KIMI, LLAMA3, QWEN2, SPLITS
from splitserve.engine_core.errors import ModelLoadError
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.engine_core.checkpoint.tokenizer.training import LINES, byte_ranks, tiktoken_library, write_ranks

SIZE = len(byte_ranks())
_GLM4 = {"[gMASK]": SIZE + 2, "<sop>": SIZE + 4, "<|user|>": SIZE + 5}


class Kind(NamedTuple):
    """A vocabulary: its file, tokenizer_config.json, pattern, the ids before texts, special tokens."""

    file: str
    config: dict[str, object]
    pattern: str
    begin: list[int]
    special: dict[str, int]


def _named(tokens: dict[str, int]) -> dict[str, object]:
    return {str(token_id): {"content": text, "special": True} for text, token_id in tokens.items()}


KINDS = {
    "Qwen": Kind(
        "qwen.tiktoken", {}, QWEN2.pattern, [], {"<|endoftext|>": SIZE, "<|extra_204|>": SIZE + 207}
    ),
    "Kimi": Kind(
        "tiktoken.model",
        {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": _named({"[EOS]": SIZE + 1})},
        KIMI.pattern,
        [],
        {"[EOS]": SIZE + 1, f"<|reserved_token_{SIZE + 255}|>": SIZE + 255},
    ),
    "GLM-4": Kind(
        "tokenizer.model",
        {"tokenizer_class": "ChatGLM4Tokenizer", "added_tokens_decoder": _named(_GLM4)},
        LLAMA3.pattern,
        [SIZE + 2, SIZE + 4],
        _GLM4,
    ),
}  # fmt: skip
_SNIPPETS = st.sampled_from(
    [
        *"abcdehlost 019",
        "it's",
        "IT'S",
        "中文",
        "English",
        "\n",
        " \r\n ",
        "  ",
        "don't",
        "é",
        "e\u0301",
        "😀",
        "/",
        "!?",
    ]
)
_TEXTS = st.one_of(st.text(max_size=30), st.lists(_SNIPPETS, max_size=12).map("".join))

TokenizerOf = Callable[[str], Tokenizer]


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> TokenizerOf:
    made: dict[str, Tokenizer] = {}

    def make(name: str) -> Tokenizer:
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            write_kind(folder, KINDS[name])
            made[name] = Tokenizer(folder)
        return made[name]

    return make


def write_kind(folder: Path, kind: Kind) -> None:
    write_ranks(folder / kind.file, byte_ranks())
    (folder / "tokenizer_config.json").write_text(json.dumps(kind.config))
    check_text_files(folder)


@pytest.mark.parametrize("name", KINDS)
@given(text=_TEXTS)
def test_ids_and_texts_are_those_of_tiktoken(tokenizer_of: TokenizerOf, name: str, text: str) -> None:
    kind, tokenizer = KINDS[name], tokenizer_of(name)
    library = tiktoken_library(kind.pattern, SIZE)
    if name == "Qwen":
        text = unicodedata.normalize("NFC", text)
    ids = tokenizer.encode(text)
    assert ids == [*kind.begin, *library.encode_ordinary(text)]
    decoder = tokenizer.detokenizer()
    assert "".join(decoder.push([i]) for i in ids) + decoder.finish() == text


@pytest.mark.parametrize("name", KINDS)
def test_special_tokens_have_the_models_names_and_ids(tokenizer_of: TokenizerOf, name: str) -> None:
    tokenizer, special = tokenizer_of(name), KINDS[name].special
    assert special.items() <= tokenizer.special_tokens.items()
    for text, token_id in special.items():
        assert tokenizer.encode(text, False, parse_special_tokens=True) == [token_id]
        assert token_id not in tokenizer.encode(text, False)


def test_llama_3_is_known_by_its_number_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ranks(tmp_path / "tokenizer.model", byte_ranks())
    with pytest.raises(ModelLoadError, match=r"neither that of Llama 3 \(128000 tokens\)"):
        Tokenizer(tmp_path)
    monkeypatch.setattr(tiktoken, "_LLAMA3_SIZE", SIZE)
    tokenizer = Tokenizer(tmp_path)
    wanted = {"<|begin_of_text|>": 0, "<|eot_id|>": 9, "<|reserved_special_token_247|>": 255}
    assert {text: SIZE + i for text, i in wanted.items()}.items() <= tokenizer.special_tokens.items()
    library = tiktoken_library(LLAMA3.pattern, SIZE)
    for line in LINES:
        assert tokenizer.encode(line) == [SIZE, *library.encode_ordinary(line)]
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ModelLoadError, match="does not say how texts are cut"):
        Tokenizer(tmp_path)


def _tekken(**changes: object) -> dict[str, object]:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in byte_ranks().items()
    ]
    config = {
        "pattern": SPLITS["tekken"].pattern,
        "default_num_special_tokens": 10,
        "default_vocab_size": SIZE + 5,
    }
    special = [
        {"rank": rank, "token_str": text} for rank, text in enumerate(["<unk>", "<s>", "</s>", "[INST]"])
    ]
    return {"config": config, "vocab": vocab, "special_tokens": special} | changes


def _changed(**changes: object) -> bytes:
    return json.dumps(_tekken(**changes)).encode()


def test_a_tekken_file_says_how_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(_tekken()))
    tokenizer = Tokenizer(tmp_path)
    # The last five lie beyond the size that it names.
    library = tiktoken_library(SPLITS["tekken"].pattern, SIZE - 5)
    for line in LINES:
        ids = tokenizer.encode(line)
        assert ids == [1, *(10 + rank for rank in library.encode_ordinary(line))]
        assert tokenizer.decode(ids) == line
    assert tokenizer.special_tokens["[INST]"] == 3
    assert tokenizer.special_tokens["<SPECIAL_9>"] == 9


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("qwen.tiktoken", b"IQ== 0\nIQ== 1\n", "line 2 holds a token for the second time"),
        ("qwen.tiktoken", b"IQ== 0\nIg== 0\n", "gives several tokens the same rank"),
        ("qwen.tiktoken", b"IQ== 0\nx\n", "line 2 is no token in base64"),
        ("qwen.tiktoken", b"IQ= 0\n", "line 1 is no token in base64"),
        ("qwen.tiktoken", b"IQ== 9999999\n", "line 1 is no token in base64"),
        ("qwen.tiktoken", b"\n", "or has none"),
        ("qwen.tiktoken", b"IQ== 0\n", "has no token for the byte 0"),
        ("tiktoken.model", b"IQ== 0\n", "neither that of Llama 3"),
        ("tekken.json", b"{", "cannot read"),
        ("tekken.json", _changed(special_tokens=None), "does not name its special tokens"),
        ("tekken.json", _changed(special_tokens=[{"rank": 1, "token_str": "a"}]), "without a gap"),
        ("tekken.json", _changed(vocab=[{"rank": 1, "token_bytes": ""}]), "without a gap"),
        ("tekken.json", _changed(vocab=[{"rank": 0, "token_bytes": "*"}]), "token_bytes"),
    ],
    ids=str,
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, file: str, content: bytes, words: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelLoadError, match=words) as raised:
        check_text_files(tmp_path)
    assert file in str(raised.value)


def test_a_model_whose_first_tokens_nobody_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"nothing names the token \[gMASK\]"):
        write_kind(tmp_path, KINDS["GLM-4"]._replace(config={"tokenizer_class": "ChatGLM4Tokenizer"}))
