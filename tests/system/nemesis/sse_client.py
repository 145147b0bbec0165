"""Many HTTP clients at little cost: bytes and times are kept as they come, and read afterwards.

A client that parses what it receives would take the cores of the server it watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from tests.history import History
from tests.system.nemesis.asks import Ask

# Requests whose first byte is awaited at the same time: a burst of thousands would time the burst.
MAX_OPENING = 256
EVENT = b"data: {"
ENDED_EARLY = "the connection ended before the answer did"


class Arrival(NamedTuple):
    """Bytes from the socket and when they came (time.monotonic)."""

    time_s: float
    data: bytes


class Progress:
    """Events of all clients so far; calls back at each."""

    def __init__(self, on_events: Callable[[int], None] = lambda _: None) -> None:
        self.num_events = 0
        self.num_ended = 0
        self._on_events = on_events

    def count(self, data: bytes) -> None:
        """Count the events in a read; one that is cut by its end is missed."""
        if new := data.count(EVENT):
            self.num_events += new
            self._on_events(self.num_events)


class Client(asyncio.Protocol):
    """Sends one request and keeps what comes until the server closes."""

    def __init__(self, request: bytes, progress: Progress, on_begun: Callable[[], None]) -> None:
        self._request = request
        self._progress = progress
        self._on_begun = on_begun
        self.begun_s = time.monotonic()
        self.arrivals: list[Arrival] = []
        self.lost: Exception | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.arrivals:
            self._on_begun()
        self.arrivals.append(Arrival(time.monotonic(), data))
        self._progress.count(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.arrivals:
            self._on_begun()
        self.lost = exc
        self._progress.num_ended += 1
        self.closed.set()

    def history(self) -> History:
        """Return what came, as this client's history."""
        history = History(self.begun_s)
        if self.lost is not None:
            history.cut_off(f"the connection broke: {self.lost}")
        read_answer(history, self.arrivals)
        return history


async def ask_all(url: str, asks: Sequence[Ask], progress: Progress, timeout_s: float) -> list[Client]:
    """Send all requests, each on a connection of its own, and wait for the ends of all answers.

    Raises:
        OSError: the server accepts no connection.

    Those that have not ended in time are returned as they are.
    """
    opening = asyncio.Semaphore(MAX_OPENING)
    loop, address = asyncio.get_running_loop(), urlsplit(url)
    host, port = address.hostname or "127.0.0.1", address.port or 80

    async def ask_one(ask: Ask) -> Client:
        await opening.acquire()
        client = Client(request_bytes(url, ask), progress, opening.release)
        await loop.create_connection(lambda: client, host, port)
        return client

    clients = await asyncio.gather(*(ask_one(ask) for ask in asks))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            for client in clients:
                await client.closed.wait()
    return clients


def request_bytes(url: str, ask: Ask) -> bytes:
    """Return the whole request; the server closes the connection after its answer."""
    content = json.dumps(ask.body).encode()
    head = (
        f"POST {ask.path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def read_answer(history: History, arrivals: Sequence[Arrival]) -> None:
    """Enter an HTTP answer into a history: its events, or all of it, each when its last byte came."""
    raw, ends, size = b"".join(data for _, data in arrivals), [], 0
    for _, data in arrivals:
        ends.append(size := size + len(data))
    head, found, _ = raw.partition(b"\r\n\r\n")
    if not found:
        history.cut_off("no answer")
        return
    body = _Body(raw, len(head) + 4, b"chunked" in head.lower())
    if head.split(b" ", 2)[1] != b"200":
        history.fail(f"status {head.split(b' ', 2)[1].decode()}: {body.rest()[:300]!r}")
    elif b"text/event-stream" in head:
        _read_events(history, body, [(end, time_s) for end, (time_s, _) in zip(ends, arrivals, strict=True)])
    else:
        _read_whole(history, head, body, arrivals[-1].time_s)
    if not body.is_complete and not history.faults:
        history.cut_off(ENDED_EARLY)


def _read_whole(history: History, head: bytes, body: _Body, time_s: float) -> None:
    content = body.rest()
    if b"content-length: %d" % len(content) in head.lower():
        body.is_complete = True
    if body.is_complete:
        history.take(time_s, json.loads(content))


def _read_events(history: History, body: _Body, ends: list[tuple[int, float]]) -> None:
    at, event = 0, b""
    while (line_and_end := body.line()) is not None:
        line, end = line_and_end
        while ends[at][0] < end:
            at += 1
        if line == b"data: [DONE]":
            history.done()
        elif line.startswith(b"data: "):
            event += line[6:]
        elif line.startswith(b"event: error"):
            history.fail("an error event")
        elif not line and event:
            history.take(ends[at][1], json.loads(event))
            event = b""


class _Body:
    """The content of an HTTP answer, with the offset in the raw bytes of what is read (RFC 9112, 7.1)."""

    def __init__(self, raw: bytes, start: int, chunked: bool) -> None:
        self._pieces: list[tuple[int, bytes]] = []
        self.is_complete = False
        while chunked and (line_end := raw.find(b"\r\n", start)) >= 0:
            size = int(raw[start:line_end].split(b";")[0], 16)
            start = line_end + 2
            self.is_complete = size == 0
            if size == 0:
                break
            self._pieces.append((start, raw[start : start + size]))
            start += size + 2
        if not chunked:
            self._pieces.append((start, raw[start:]))

    def rest(self) -> bytes:
        """Return all that has not been read."""
        rest = b"".join(data for _, data in self._pieces)
        self._pieces = []
        return rest

    def line(self) -> tuple[bytes, int] | None:
        """Return the next line without its end, and the offset of the byte after it; None at the end."""
        line = b""
        while self._pieces:
            start, data = self._pieces[0]
            head, newline, rest = data.partition(b"\n")
            line += head
            offset = start + len(head) + len(newline)
            self._pieces[0:1] = [(offset, rest)] if rest else []
            if newline:
                return line.rstrip(b"\r"), offset
        return None
