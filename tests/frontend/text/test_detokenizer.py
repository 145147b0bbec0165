"""Detokenising token by token gives what the library gives for all ids at once."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.detokenizer import ByteDetokenizer, WindowDetokenizer
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.text.conftest import LibraryOf, TokenizerOf

ALL_KINDS = ["byte_level", "with_bos", "sentencepiece", "metaspace", "wordpiece"]
TEXTS = st.text(st.sampled_from("helo wTthe äöü你好🙂\n\t<|>é{}\u200b#"), max_size=60)


def stream(tokenizer: Tokenizer, token_ids: list[int], skip: bool, sizes: list[int]) -> str:
    detokenizer = tokenizer.detokenizer(skip)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(detokenizer.push(token_ids[start : start + size]))
        start += size
    return "".join([*pieces, detokenizer.push(token_ids[start:]), detokenizer.finish()])


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(data=st.data(), skip=st.booleans())
def test_text_comes_back_whatever_the_split(
    tokenizer_of: TokenizerOf, library_of: LibraryOf, kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode(data.draw(TEXTS))
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=40))
    assert stream(tokenizer, token_ids, skip, sizes) == library_of(kind).decode(
        token_ids, skip_special_tokens=skip
    )


@pytest.mark.parametrize("kind", ["byte_level", "with_bos"])
@given(data=st.data(), skip=st.booleans())
def test_any_ids_of_byte_level_decode_as_the_library_does(
    tokenizer_of: TokenizerOf, library_of: LibraryOf, kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizer_of(kind)
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    sizes = data.draw(st.lists(st.integers(0, 3), max_size=30))
    assert stream(tokenizer, token_ids, skip, sizes) == library_of(kind).decode(
        token_ids, skip_special_tokens=skip
    )


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
@given(data=st.data(), skip=st.booleans())
def test_any_ids_of_piece_models_decode_as_the_library_does(
    tokenizer_of: TokenizerOf, library_of: LibraryOf, kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizer_of(kind)
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    if kind == "sentencepiece" and _has_mixed_byte_run(tokenizer, token_ids, skip):
        return
    expected = library_of(kind).decode(token_ids, skip_special_tokens=skip)
    assert stream(tokenizer, token_ids, skip, data.draw(st.lists(st.integers(0, 3)))) == expected


def _has_mixed_byte_run(tokenizer: Tokenizer, token_ids: list[int], skip: bool) -> bool:
    """Whether some run of byte tokens holds whole characters and stray bytes: there we differ on purpose."""
    shown = [i for i in token_ids if tokenizer.token_name(i) and not (skip and i in tokenizer.special_ids)]
    names = "".join(f"{tokenizer.token_name(i)}\n" for i in shown)
    for run in re.findall(r"(?:<0x[0-9A-F]{2}>\n)+", names):
        text = bytes(int(byte, 16) for byte in re.findall("[0-9A-F]{2}(?=>)", run)).decode("utf-8", "replace")
        if "\ufffd" in text and text.strip("\ufffd"):
            return True
    return False


@given(data=st.data())
def test_a_byte_run_keeps_its_characters_and_shows_each_stray_byte(
    tokenizer_of: TokenizerOf, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of("sentencepiece")
    text = data.draw(st.text(st.sampled_from("é你🙂a"), min_size=1, max_size=5))
    stray = data.draw(st.integers(1, 3))
    names = [f"<0x{byte:02X}>" for byte in text.encode() + b"\x80" * stray]
    token_ids: list[Any] = [tokenizer.raw.token_to_id(name) for name in names]
    assert stream(tokenizer, token_ids, True, [1] * len(token_ids)) == text + "\ufffd" * stray


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_no_text_comes_out_before_a_character_is_whole(tokenizer_of: TokenizerOf, kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode("🙂", add_special_tokens=False)
    detokenizer = tokenizer.detokenizer()
    texts = [detokenizer.push([token_id]) for token_id in token_ids]
    assert len(texts) >= 2
    assert set(texts[:-1]) <= {"", " "}
    assert texts[-1] == "🙂"


def test_an_unfinished_character_is_flushed_as_the_replacement_character(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    token_ids = tokenizer.encode("a🙂", add_special_tokens=False)[:-1]
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push(token_ids) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_show_only_when_asked_for(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    token_ids = tokenizer.encode("hi<|im_end|>you", parse_special_tokens=True)
    assert tokenizer.decode(token_ids) == "hiyou"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "hi<|im_end|>you"


def test_common_decoders_take_the_table_and_others_the_library(tokenizer_of: TokenizerOf) -> None:
    kinds = {kind: type(tokenizer_of(kind).detokenizer()) for kind in ALL_KINDS}
    assert kinds.pop("wordpiece") is WindowDetokenizer
    assert set(kinds.values()) == {ByteDetokenizer}


def test_tables_never_outgrow_the_vocabulary(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    detokenizer = tokenizer.detokenizer()
    detokenizer.push([tokenizer.vocab_size + i for i in range(1000)] + [-1, 2**31 - 1])
    assert detokenizer.finish() == ""
    assert len(tokenizer._pieces.keep) <= tokenizer.vocab_size
