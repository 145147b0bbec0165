"""Encoding, token texts, limits and load errors of Tokenizer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import byte_level, write_checkpoint
from tests.frontend.text.conftest import LibraryOf, TokenizerOf


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json does not exist"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text("{")
    with pytest.raises(ModelLoadError, match=name):
        Tokenizer(tmp_path)


def test_truncation_of_the_file_is_switched_off(tmp_path: Path, tokenizer_of: TokenizerOf) -> None:
    raw = byte_level()
    raw.enable_truncation(4)
    raw.enable_padding(length=100)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("Hello world " * 9) == tokenizer_of("byte_level").encode("Hello world " * 9)


@pytest.mark.parametrize("kind", ["with_bos", "sentencepiece"])
def test_the_post_processor_adds_bos_when_asked(
    tokenizer_of: TokenizerOf, library_of: LibraryOf, kind: str
) -> None:
    tokenizer = tokenizer_of(kind)
    with_bos, without = tokenizer.encode("hello"), tokenizer.encode("hello", add_special_tokens=False)
    assert with_bos[1:] == without
    assert with_bos[0] in tokenizer.special_ids
    assert with_bos == library_of(kind).encode("hello").ids


@pytest.mark.parametrize("kind", ["byte_level", "with_bos", "sentencepiece"])
def test_token_bytes_joined_are_the_text(tokenizer_of: TokenizerOf, kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    texts = [tokenizer.token_text(i) for i in tokenizer.encode("Hello 你 🙂 wörld", add_special_tokens=False)]
    assert b"".join(text.data for text in texts).decode().strip() == "Hello 你 🙂 wörld"
    assert any(text.text == "\ufffd" for text in texts)


def test_unknown_ids_have_no_text(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    for token_id in (-1, tokenizer.vocab_size, 2**31):
        assert tokenizer.token_text(token_id) == ("", b"")
        assert tokenizer.token_name(token_id) is None
    assert tokenizer.decode([2**31 - 1, -5]) == ""


def test_lone_surrogates_are_refused(tokenizer_of: TokenizerOf) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate at character 2"):
        tokenizer_of("byte_level").encode("ab\ud800")


async def test_long_texts_are_encoded_in_a_thread_and_short_ones_here(
    tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, threads = tokenizer_of("byte_level"), []
    encode = Tokenizer.encode

    def spy(
        self: Tokenizer, text: str, add_special_tokens: bool = True, *, parse_special_tokens: bool = False
    ) -> list[int]:
        threads.append(threading.current_thread())
        return encode(self, text, add_special_tokens, parse_special_tokens=parse_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", spy)
    short, long = "Hello", "Hello world " * 5000
    assert await tokenizer.encode_async(short) == encode(tokenizer, short)
    assert await tokenizer.encode_async(long) == encode(tokenizer, long)
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


async def test_the_event_loop_runs_on_while_a_long_text_is_encoded(tokenizer_of: TokenizerOf) -> None:
    """The call must not hold the interpreter lock; counted turns, not time, show it."""
    tokenizer = tokenizer_of("byte_level")
    encoding = asyncio.ensure_future(tokenizer.encode_async("Hello world the quick " * 40_000))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await encoding) > 1000
    assert turns > 100


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
def test_special_tokens_may_be_kept_one_by_one(tokenizer_of: TokenizerOf, kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    kept, other = sorted(tokenizer.special_ids)[-2:]
    name = tokenizer.token_name(kept)
    hello = tokenizer.encode("hello", add_special_tokens=False)
    token_ids = [other, *hello, kept, other, *hello]
    detokenizer = tokenizer.detokenizer(True, (), frozenset([kept]))
    whole = detokenizer.push(token_ids) + detokenizer.finish()
    assert whole.replace(" ", "") == f"hello{name}hello"
    one_by_one = tokenizer.detokenizer(True, (), frozenset([kept]))
    assert "".join(one_by_one.push([each]) for each in token_ids) + one_by_one.finish() == whole
    assert str(name) not in tokenizer.decode(token_ids)


def test_a_decoder_of_the_librarys_keeps_special_tokens_too(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("wordpiece")
    assert tokenizer.detokenizer(True, (), frozenset([1])).push([1, 2]) == "hello world"


def test_tables_are_made_once_for_each_set_of_kept_tokens(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    kept = frozenset(list(tokenizer.special_ids)[:1])
    states = [
        tokenizer.detokenizer(True, (0,), each).state() for each in (kept, frozenset(kept), frozenset())
    ]
    assert all(state is not None for state in states)
    assert states[0].pieces is states[1].pieces
    assert states[0].pieces is not states[2].pieces


def test_a_token_that_is_unknown_and_the_end_alike_is_kept_from_users(tmp_path: Path) -> None:
    names: dict[str, object] = dict.fromkeys(("unk_token", "eos_token"), "<|endoftext|>")
    tokenizer = Tokenizer(write_checkpoint(tmp_path, config=names))
    assert "<|endoftext|>" in tokenizer.control_tokens


def test_the_first_text_of_a_pair_may_be_empty(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    assert tokenizer.encode_pair("", "hello").token_ids == tokenizer.encode("hello")
    assert tokenizer.encode_pair("hello", "").token_ids == tokenizer.encode("hello")
