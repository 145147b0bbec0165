"""A stream is read as whole, failed, refused or broken, and compared with its right text."""

from __future__ import annotations

import json

from benchmarks.compare.stream_client import Arrival
from benchmarks.load.plan import Ask, End, Seen
from benchmarks.load.stream_log import StreamLog

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"


def read(*pieces: bytes, end: End = End.BROKEN, right: str = "abc") -> Seen:
    log = StreamLog("x-1", Ask(0.0, 80, 0), 1.0)
    log.arrivals = [Arrival(float(i + 2), piece) for i, piece in enumerate(pieces)]
    return log.read(end, 9.0, right)


def test_a_stream_that_ended_in_order_is_whole() -> None:
    seen = read(HEAD + event("a"), event("bc"), DONE)
    assert (seen.end, seen.status, seen.is_right, seen.text) == (End.WHOLE, 200, True, "")
    assert seen.times_s.tolist() == [2.0, 3.0]
    assert seen.chars.tolist() == [1, 3]


def test_a_whole_stream_needs_the_whole_text_and_a_cut_one_its_start() -> None:
    assert not read(HEAD + event("ab"), DONE).is_right
    assert not read(HEAD + event("abcd"), DONE).is_right
    assert read(HEAD + event("ab"), end=End.HUNG_UP).is_right
    assert not read(HEAD + event("ac"), end=End.OPEN).is_right


def test_comments_and_pieces_of_events_do_not_matter() -> None:
    seen = read(HEAD + b": keep-alive\n\n" + event("a")[:9], event("a")[9:] + event("b")[:4], end=End.OPEN)
    assert (seen.end, seen.is_right, seen.chars.tolist()) == (End.OPEN, True, [1])


def test_a_text_that_is_not_known_yet_is_kept() -> None:
    seen = read(HEAD + event("xy"), DONE, right="")
    assert (seen.text, seen.is_right) == ("xy", True)


def test_a_connection_that_ends_too_early_is_broken() -> None:
    assert read(HEAD + event("a")).end is End.BROKEN
    assert read().end is End.BROKEN


def test_an_error_in_a_stream_is_a_failure_with_its_code() -> None:
    seen = read(HEAD + event("a") + b'data: {"error": {"code": "engine_unavailable"}}\n\n')
    assert (seen.end, seen.error, seen.is_right) == (End.FAILED, "engine_unavailable", True)


def test_a_refusal_has_a_status_and_a_code() -> None:
    seen = read(b'HTTP/1.1 429 Too Many\r\ncontent-length: 33\r\n\r\n{"error": {"code": "overloaded"}}')
    assert (seen.end, seen.status, seen.error) == (End.REFUSED, 429, "overloaded")


def test_what_the_server_said_ends_a_stream_when_it_came_and_not_when_the_client_saw_it() -> None:
    refusal = b"HTTP/1.1 429 Too Many\r\ncontent-length: 33\r\n\r\n", b'{"error": {"code": "overloaded"}}'
    assert read(*refusal).ended_s == 3.0
    assert read(HEAD + event("abc"), DONE).ended_s == 3.0
    assert read(HEAD + event("a")).ended_s == read(HEAD, end=End.HUNG_UP).ended_s == 9.0
