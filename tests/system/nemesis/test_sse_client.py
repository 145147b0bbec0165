"""Answers are read as HTTP clients read them, however they were cut on their way; nothing is overlooked."""

from __future__ import annotations

import pytest

from tests.history import History
from tests.system.nemesis.asks import KINDS, greedy_asks, mixed_asks
from tests.system.nemesis.sse_client import ENDED_EARLY, Arrival, Progress, read_answer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = b'data: {"id":"a","choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n'
LAST = b'data: {"id":"a","choices":[{"index":0,"text":"y","finish_reason":"stop"}]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def read(*pieces: bytes) -> History:
    history = History()
    read_answer(history, [Arrival(float(number), piece) for number, piece in enumerate(pieces)])
    return history


def test_events_come_when_their_last_byte_does() -> None:
    second = chunk(b": keep-alive\n\n") + chunk(LAST)
    history = read(HEAD + chunk(FIRST), second[:40], second[40:], chunk(b"data: [DONE]\n\n") + chunk(b""))
    assert history.is_whole
    assert history.choices[0].text == "xy"
    assert history.times_s == [0.0, 2.0]
    assert history.num_done == 1


@pytest.mark.parametrize("size", [1, 7, 50])
def test_the_cut_into_reads_changes_nothing(size: int) -> None:
    raw = HEAD + chunk(FIRST + LAST) + chunk(b"data: [DONE]\n\n") + chunk(b"")
    history = read(*(raw[at : at + size] for at in range(0, len(raw), size)))
    assert history.choices == read(raw).choices
    assert history.is_whole


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "no answer"),
        (HEAD + chunk(FIRST), ENDED_EARLY),
        (
            HEAD + chunk(b'data: {"error":{"code":"engine_unavailable"}}\n\n') + chunk(b""),
            "engine_unavailable",
        ),
        (HEAD + chunk(b"event: error\n\n") + chunk(b""), "an error event"),
        (b"HTTP/1.1 503 Gone\r\ncontent-length: 2\r\n\r\n{}", "status 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", ENDED_EARLY),
    ],
)
def test_whatever_is_not_a_whole_answer_is_a_fault(raw: bytes, fault: str) -> None:
    assert fault in read(raw).faults[0]


def test_a_whole_answer_is_read_too() -> None:
    content = b'{"id":"a","choices":[{"index":0,"text":"x","finish_reason":"stop"}]}'
    history = read(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))
    assert history.is_whole


def test_progress_counts_the_events_of_all_clients() -> None:
    seen: list[int] = []
    progress = Progress(seen.append)
    progress.count(FIRST + LAST)
    progress.count(b": keep-alive\n\n")
    progress.count(FIRST)
    assert seen == [2, 3]


def test_asks_are_of_every_kind_and_the_same_each_time() -> None:
    asks = mixed_asks(2 * len(KINDS), 50)
    assert asks == mixed_asks(2 * len(KINDS), 50)
    assert len({str(ask) for ask in asks}) == len(asks)
    assert len({str(ask) for ask in greedy_asks(9, 50, [1, 2, 3])}) == 9
