"""How are completions streamed over HTTP at little cost? Bytes and times first, what they mean afterwards."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

LIMIT_S = 600.0


class StreamError(RuntimeError):
    """A server refused a request, or ended a stream with an error."""


class Arrival(NamedTuple):
    """Bytes from the socket and when they came (time.perf_counter)."""

    time_s: float
    data: bytes


class Completion(NamedTuple):
    """One finished stream.

    Attributes:
        sent_s, ended_s: when the request was sent and when its last bytes came.
        text_times_s: when each event with text came; at least one.
        num_tokens: what the server counted, or its events with text if it does not count.
        num_prompt_tokens: what the server counted, 0 if it does not count.
    """

    sent_s: float
    ended_s: float
    text_times_s: list[float]
    num_tokens: int
    num_prompt_tokens: int


class _Connection(asyncio.Protocol):
    """Sends one request and keeps what comes until the server closes; nothing is parsed meanwhile."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.arrivals: list[Arrival] = []
        self.sent_s = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sent_s = time.perf_counter()
        # uvloop's transports are of no class of asyncio's.
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.arrivals.append(Arrival(time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.closed.set_exception(StreamError(f"connection lost: {exc}"))
        else:
            self.closed.set_result(None)


def request_bytes(url: str, body: Mapping[str, object], request_id: str = "") -> bytes:
    """Return a completion request that asks the server to close the connection after its answer."""
    content = json.dumps(body).encode()
    head = [
        "POST /v1/completions HTTP/1.1",
        f"Host: {urlsplit(url).netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        # Servers differ in how they treat kept connections; opening one costs all of them the same.
        "Connection: close",
        *([f"X-Request-Id: {request_id}"] if request_id else []),
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


async def stream(url: str, bodies: Sequence[Mapping[str, object]], concurrency: int) -> list[Completion]:
    """Send requests, so many at a time; return the finished streams. Raises StreamError, TimeoutError."""
    requests = [request_bytes(url, body) for body in reversed(bodies)]
    finished: list[_Connection] = []
    address = urlsplit(url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    loop = asyncio.get_running_loop()

    async def client() -> None:
        while requests:
            request = requests.pop()
            make = lambda request=request: _Connection(request)  # noqa: E731
            _, connection = await loop.create_connection(make, host, port)
            await connection.closed
            finished.append(connection)

    clients = [asyncio.create_task(client()) for _ in range(concurrency)]
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*clients)
    finally:
        for task in clients:
            task.cancel()
    return [read_answer(connection.sent_s, connection.arrivals) for connection in finished]


def read_answer(sent_s: float, arrivals: Sequence[Arrival]) -> Completion:
    """Return what the bytes of one HTTP answer mean; raises StreamError for a refusal or an error event."""
    status, events = read_events(arrivals)
    if status != 200:
        raw = b"".join(data for _, data in arrivals)
        raise StreamError(raw[:500].decode(errors="replace") or "closed without an answer")
    times: list[float] = []
    usage: dict[str, Any] = {}
    for time_s, event in events:
        if "error" in event:
            raise StreamError(json.dumps(event))
        usage = event.get("usage") or usage
        if any(choice.get("text") for choice in event.get("choices") or ()):
            times.append(time_s)
    if not times:
        raise StreamError("a stream ended without text")
    num_tokens = usage.get("completion_tokens", len(times))
    return Completion(sent_s, arrivals[-1].time_s, times, num_tokens, usage.get("prompt_tokens", 0))


def read_events(arrivals: Sequence[Arrival]) -> tuple[int, Iterator[tuple[float, dict[str, Any]]]]:
    """Return the status of an answer, 0 if there is none, and its whole JSON events with their times.

    The JSON body of a refusal is one event; one that is no JSON raises msgspec.DecodeError there.
    """
    raw = b"".join(data for _, data in arrivals)
    head, separator, _ = raw.partition(b"\r\n\r\n")
    if not separator:
        return 0, iter(())
    status = int(head.split(maxsplit=2)[1])
    pieces = _pieces(raw, len(head) + 4, b"chunked" in head.lower())
    return status, _timed(pieces, arrivals) if status == 200 else _body(pieces, arrivals[-1].time_s)


def _timed(
    pieces: Iterable[tuple[int, bytes]], arrivals: Sequence[Arrival]
) -> Iterator[tuple[float, dict[str, Any]]]:
    ends = list(itertools.accumulate(len(data) for _, data in arrivals))
    for end, event in _events(pieces):
        yield arrivals[bisect.bisect_right(ends, end)].time_s, event


def _body(pieces: Iterable[tuple[int, bytes]], time_s: float) -> Iterator[tuple[float, dict[str, Any]]]:
    yield time_s, msgspec.json.decode(b"".join(data for _, data in pieces), type=dict[str, Any])


def _pieces(raw: bytes, start: int, chunked: bool) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of each piece of a body, which may be cut off (chunks: RFC 9112, 7.1)."""
    if not chunked:
        yield start, raw[start:]
        return
    while start < len(raw):
        line_end = raw.find(b"\r\n", start)
        if line_end < 0:  # cut off here
            return
        size = int(raw[start:line_end].split(b";")[0], 16)
        yield line_end + 2, raw[line_end + 2 : line_end + 2 + size]
        start = line_end + 2 + size + 2
        if size == 0:
            return


def _events(pieces: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each JSON event, and the offset of the byte that ended its line."""
    rest = b""
    for offset, data in pieces:
        for line in data.splitlines(keepends=True):
            offset += len(line)
            rest += line
            if not rest.endswith(b"\n"):
                continue
            content, rest = rest.strip(), b""
            if content.startswith(b"data:") and content[5:].lstrip().startswith(b"{"):
                yield offset - 1, msgspec.json.decode(content[5:], type=dict[str, Any])
