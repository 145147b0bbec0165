"""Whatever happened to a vocabulary's file, it is read, and then reads texts, or it is refused by name."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.checkpoint.tokenizer import merges
from splitserve.engine_core.checkpoint.tokenizer.splits import SPLITS
from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.engine_core.checkpoint.tokenizer.training import byte_ranks, sentencepiece_model

_WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\n##s\n"


def _tekken() -> bytes:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode()}
        for token, rank in byte_ranks().items()
    ]
    special = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}]
    config = {"pattern": SPLITS["tekken"].pattern}
    return json.dumps({"config": config, "special_tokens": special, "vocab": vocab}).encode()


def _tiktoken() -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in byte_ranks().items())


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "unigram": (
        "tokenizer.model",
        lambda: sentencepiece_model("unigram", normalization_rule_name="nfkc_cf"),
    ),
    "bpe": ("tokenizer.model", lambda: sentencepiece_model("bpe", byte_fallback=True)),
    "tiktoken": ("qwen.tiktoken", _tiktoken),
    "tekken": ("tekken.json", _tekken),
    "words": ("vocab.txt", _WORDS.encode),
}


@st.composite
def _edited(draw: st.DrawFn, data: bytes) -> bytes:
    # Near both ends is what says how the rest is read.
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.one_of(st.integers(0, 200), st.integers(-200, -1), st.integers(0, len(data)))) % len(
            data
        )
        width, new = draw(st.integers(0, 4)), draw(st.binary(max_size=4))
        data = data[:place] + new + data[place + width :]
    return data


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    name, content = FILES[kind]
    folder = tmp_path_factory.mktemp("model")
    (folder / name).write_bytes(data.draw(_edited(content())))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    refusal = ""
    try:
        check_text_files(folder)
        _read(Tokenizer(folder))
    except ModelLoadError as error:
        refusal = str(error)
    assert not refusal or str(folder) in refusal


def _read(tokenizer: Tokenizer) -> None:
    for text in ("Hello <s> wörld 你好 \U0001f642  ok.\n", "", "ｶﾞ \ufb01 <0x41>"):
        try:
            ids = tokenizer.encode(text, parse_special_tokens=True)
        except InvalidRequestError:
            continue
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
        assert isinstance(tokenizer.decode(ids), str)


def test_undamaged_files_are_read(tmp_path: Path) -> None:
    for kind, (name, content) in FILES.items():
        folder = tmp_path / kind
        folder.mkdir()
        (folder / name).write_bytes(content())
        (folder / "config.json").write_text('{"model_type": "bert"}')
        check_text_files(folder)
        _read(Tokenizer(folder))


@pytest.mark.parametrize("kind", ["bpe", "tiktoken", "tekken"])
def test_a_vocabulary_of_too_many_merges_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(merges, "MAX_MERGES", 3)
    name, content = FILES[kind]
    (tmp_path / name).write_bytes(content())
    with pytest.raises(ModelLoadError, match="more than 3 merges") as caught:
        check_text_files(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_a_tekken_file_that_does_not_say_how_texts_are_cut_is_refused(tmp_path: Path) -> None:
    content = json.loads(_tekken())
    content["config"]["pattern"] = ""
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match="pattern"):
        check_text_files(tmp_path)
