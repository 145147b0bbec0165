"""Native code writes the bytes that Python writes: the same text, escapes, events and chunks."""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.ipc.codec import pack_int32, pack_int64
from splitserve.frontend.engines.connection.token_relay import Frame, Relayed, Route, TokenRelay
from splitserve.frontend.http.connection.body_writer import BodyWriter
from splitserve.frontend.metrics.histogram import Histogram
from splitserve.frontend.text.decode_table import DecodeRules, Pieces
from splitserve.frontend.text.detokenizer import ByteDetokenizer, Detokenizer
from tests.frontend.text.conftest import TokenizerOf

FRAME = Frame(b'data: {"choices":[{"text":', b"}]}\n\n")
# Beginnings, ends and neighbours of every row of the table of well-formed UTF-8.
EDGES = [0x00, 0x1F, 0x22, 0x41, 0x5C, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF]
EDGES += [0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
PIECE = st.binary(max_size=4) | st.lists(st.sampled_from(EDGES), max_size=5).map(bytes)


class Connection(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data


def python_bytes(detokenizer: Detokenizer, parts: Sequence[list[int]]) -> tuple[bytes, int]:
    """What the Python path sends for these tokens, one event for each part, and how much of it is body."""
    connection = Connection()
    writer = BodyWriter(connection, lambda: None, paused=False)
    for part in parts:
        text = detokenizer.push(part)
        if text:
            writer.write(FRAME.prefix + msgspec.json.encode(text) + FRAME.suffix)
    return connection.data, writer.num_bytes


def native_bytes(detokenizer: Detokenizer, parts: Sequence[list[int]]) -> tuple[bytes, Relayed]:
    """What native code sends, and what it gives back; at most a socket's buffer."""
    state = detokenizer.state()
    assert state is not None
    relay = TokenRelay()
    writer, reader = socket.socketpair()
    with writer, reader:
        route = Route(writer.fileno(), FRAME, Histogram((1.0,)).buckets, 0.0)
        stream = relay.attach(7, route, state, array("i"), 0)
        first = 0
        for part in parts:
            rows = len(part)
            places = pack_int32(range(first, first + rows))
            assert list(relay.add(pack_int64([7] * rows), pack_int32(part), places, rows)) == []
            assert relay.flush(1.0) == (0, [])
            first += rows
        back = stream.recall()
        writer.close()
        return b"".join(iter(lambda: reader.recv(65536), b"")), back


def compare(make: Callable[[], Detokenizer], parts: Sequence[list[int]]) -> None:
    """Both paths over the same tokens, from the first place on at which Python may give the text away."""
    python, native = make(), make()
    beginning = list(parts)
    while native.state() is None and beginning:
        assert python.push(beginning[0]) == native.push(beginning[0])
        del beginning[0]
    if native.state() is None:
        return
    expected, num_body_bytes = python_bytes(python, beginning)
    got, back = native_bytes(native, beginning)
    assert got == expected
    assert (back.num_body_bytes, back.unsent) == (num_body_bytes, b"")
    assert back.token_ids.tolist() == [token_id for part in beginning for token_id in part]
    native.resume(back.held)
    assert native.finish() == python.finish()


@pytest.mark.parametrize("kind", ["byte_level", "with_bos", "sentencepiece", "metaspace"])
@given(data=st.data(), skip=st.booleans())
def test_all_tokenizers_that_have_a_table(
    tokenizer_of: TokenizerOf, kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizer_of(kind)
    ids = st.integers(-2, tokenizer.vocab_size + 3)
    parts = data.draw(st.lists(st.lists(ids, max_size=4), max_size=12))
    compare(lambda: tokenizer.detokenizer(skip), parts)


def detokenizer_over(table: Sequence[bytes], *, byte_fallback: bool) -> ByteDetokenizer:
    """A detokenizer whose token i stands for table[i]."""
    rules = DecodeRules(spell=lambda name: table[int(name)], byte_fallback=byte_fallback)
    raw: Any = SimpleNamespace(id_to_token=str)
    return ByteDetokenizer(rules, Pieces(raw, rules.spell, frozenset(), len(table)), None)


@given(st.lists(PIECE, min_size=1, max_size=30), st.data(), st.booleans())
def test_any_bytes_of_tokens(table: list[bytes], data: st.DataObject, byte_fallback: bool) -> None:
    ids = st.integers(0, len(table) - 1)
    parts = data.draw(st.lists(st.lists(ids, max_size=5), max_size=12))
    compare(lambda: detokenizer_over(table, byte_fallback=byte_fallback), parts)


def test_every_ascii_character_and_some_others_are_escaped_alike() -> None:
    characters = [*map(chr, range(128)), "\x80", "é", "\u2028", "\ufffd", "\uffff", "🙂", "\U0010ffff"]
    table = [char.encode() for char in characters]
    compare(lambda: detokenizer_over(table, byte_fallback=False), [[i] for i in range(len(table))])


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_every_pair_of_bytes_decodes_alike(byte_fallback: bool) -> None:
    table = [bytes([first, second]) for first in range(0x7E, 256) for second in EDGES]
    # The letter ends what the pair began: in an event of its own, as that shows what was held before it.
    table.append(b"a")
    letter = [len(table) - 1]
    for begin in range(0, len(table) - 1, 128):
        pairs = range(begin, min(begin + 128, len(table) - 1))
        parts = [part for pair in pairs for part in ([pair], letter)]
        compare(lambda: detokenizer_over(table, byte_fallback=byte_fallback), parts)


def test_a_large_event_has_its_size_in_front() -> None:
    table = [b"x" * 40_000]
    compare(lambda: detokenizer_over(table, byte_fallback=False), [[0], [0, 0]])
