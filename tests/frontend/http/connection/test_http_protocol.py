"""Bytes on the wire that are no good HTTP: what the connection answers, and that the server lives on."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.connection import http_protocol
from splitserve.frontend.http.connection.connection_limits import (
    MAX_LINGERING,
    ConnectionLimits,
    ConnectionPlace,
)
from splitserve.frontend.http.connection.head_size import MAX_HEADER_BYTES, MAX_HEADERS
from splitserve.frontend.http.connection.http_protocol import MAX_PIPELINED
from tests.frontend.http.app_fixtures import ServerFactory, make_config
from tests.frontend.http.fake_pool import FakePool

LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


async def talk(url: str, *pieces: bytes, half_close: bool = False) -> bytes:
    """Send pieces on a new connection and return all that comes back until it closes."""
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(30):
            return await reader.read()
    except (ConnectionResetError, BrokenPipeError):
        return b"reset"
    finally:
        writer.close()


@pytest.fixture
async def url(make_server: ServerFactory) -> AsyncGenerator[str, None]:
    """A server; after the test it must still answer."""
    address = await make_server()
    yield address
    assert (await talk(address, LIVE)).startswith(b"HTTP/1.1 200 ")


@pytest.fixture
async def hasty_url(make_server: ServerFactory) -> AsyncGenerator[str, None]:
    """The same, which does not wait for long; what is sent without a pause comes in time."""
    address = await make_server(header_timeout_s=1)
    yield address
    assert (await talk(address, LIVE)).startswith(b"HTTP/1.1 200 ")


ONE = LIVE.replace(b"connection: close\r\n", b"")


def post(body: dict, version: bytes = b"HTTP/1.1") -> bytes:
    """A completion."""
    data = json.dumps(body).encode()
    head = [b"POST /v1/completions " + version, b"host: x", b"content-type: application/json"]
    return b"\r\n".join([*head, b"content-length: %d" % len(data), b"", data])


def request(*headers: bytes, line: bytes = b"GET /live HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"host: x", *headers, b"connection: close", b"", b""])


async def test_headers_within_the_limits_are_taken(url: str) -> None:
    headers = [b"x-%d: y" % i for i in range(MAX_HEADERS - 2)]
    assert (await talk(url, request(*headers))).startswith(b"HTTP/1.1 200 ")
    assert (await talk(url, request(b"x: " + b"y" * (MAX_HEADER_BYTES - 200)))).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "data",
    [
        request(*[b"x-%d: y" % i for i in range(MAX_HEADERS)]),
        request(*[b"x-%d: y" % i for i in range(10_000)]),
        request(b"x: " + b"y" * MAX_HEADER_BYTES),
        b"GET /live HTTP/1.1\r\nx: " + b"y" * 10 * MAX_HEADER_BYTES,
        request(line=b"GET /" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1"),
    ],
    ids=["65 headers", "10000 headers", "one long", "one endless", "long path"],
)
async def test_headers_beyond_the_limits_are_431(url: str, data: bytes) -> None:
    answer = await talk(url, data)
    assert answer == b"reset" or (
        answer.startswith(b"HTTP/1.1 431 ") and b'"code":"headers_too_large"' in answer
    )


CHUNKED = request(
    b"content-type: application/json", b"transfer-encoding: chunked", line=b"POST /tokenize HTTP/1.1"
)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"bad_http"),
        (b"GARBAGE\r\n\r\n", b"bad_http"),
        (b"GET /live HTTP/9.9\r\n\r\n", b"bad_http"),
        (b"GET  HTTP/1.1\r\n\r\n", b"bad_http"),
        (b"GET /live HTTP/1.1\r\n\r\n", b"bad_http"),
        (request(b"host: x"), b"bad_http"),
        (request(b"host: y"), b"bad_http"),
        (b"GET /live HTTP/1.1\r\nhost: a/b c\r\n\r\n", b"bad_http"),
        (b"GET /live HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", b"bad_http"),
        (request(b"content-length: 5", b"content-length: 5"), b"bad_http"),
        (request(b"content-length: 5", b"content-length: 6"), b"bad_http"),
        (request(b"content-length: 5", b"transfer-encoding: chunked"), b"bad_http"),
        (request(b"transfer-encoding: chunked", b"content-length: 5"), b"bad_http"),
        (request(b"content-length: -1"), b"bad_http"),
        (request(b"content-length: x"), b"bad_http"),
        (request(b"content-length: 99999999999999999999"), b"bad_http"),
        (request(b"transfer-encoding: chunked, chunked"), b"bad_http"),
        (request(b"transfer-encoding: chunked", b"transfer-encoding: chunked"), b"bad_http"),
        (CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n", b"bad_http"),
        (request(b"transfer-encoding: gzip"), b"unsupported_transfer_encoding"),
        (request(b"transfer-encoding: gzip, chunked"), b"unsupported_transfer_encoding"),
        (request(b"transfer-encoding: xchunked"), b"unsupported_transfer_encoding"),
        (request(b"bad header"), b"bad_http"),
        (request(b"x: a\x00b"), b"bad_http"),
        (CHUNKED + b"zz\r\n", b"bad_http"),
        (CHUNKED + b'5\r\n{"pro\r\nxx\r\n', b"bad_http"),
        (CHUNKED + b"5\r\n{}     \r\n0\r\n\r\n", b"bad_http"),
        (CHUNKED + b"fffffffffffffffff\r\n", b"bad_http"),
        (b"GET http://[::1 HTTP/1.1\r\nhost: x\r\n\r\n", b"bad_http"),
        (b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n", b"bad_http"),
    ],
    ids=lambda data: str(data[-60:]),
)
async def test_what_is_no_good_http_is_refused_behind_the_answers_before_it(
    url: str, pool: FakePool, data: bytes, code: bytes
) -> None:
    before = (ONE * 3) + post({"prompt": "x"})
    for first, statuses in ((b"", []), (before, [b"200"] * 4)):
        answer = await talk(url, first + data)
        status = b"501" if code.startswith(b"unsupported") else b"400"
        assert STATUS.findall(answer) == [*statuses, status], answer
        refusal = answer[[match.start() for match in STATUS.finditer(answer)][-1] :]
        assert b'"code":"%b"' % code in refusal
        assert b'"type":"invalid_request_error"' in refusal
        assert b"\r\nconnection: close\r\n" in refusal


@pytest.mark.parametrize(
    "data",
    [
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    ],
)
async def test_odd_targets_are_errors_of_the_client(url: str, data: bytes) -> None:
    assert (await talk(url, data)).split(b" ")[1][:1] == b"4"


async def test_chunks_are_refused_at_once_while_the_request_waits_for_its_body(url: str) -> None:
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    async with asyncio.timeout(30):
        writer.write(CHUNKED + b"5\r\n")
        await writer.drain()
        # Another connection's answer: the first has been read by then.
        assert (await talk(url, LIVE)).startswith(b"HTTP/1.1 200 ")
        writer.write(b"{}   \r\nzz\r\n")
        assert STATUS.findall(await reader.read()) == [b"400"]
    writer.close()


async def test_a_client_that_leaves_with_requests_in_its_pipeline_makes_no_fault(
    make_server: ServerFactory, pool: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        begun.set()
        await asyncio.Event().wait()
        yield OutputDelta(0)

    pool.script = script
    target = urlsplit(await make_server())
    _, writer = await asyncio.open_connection(target.hostname, target.port)
    writer.write(post({"prompt": "x"}) + ONE * 3)
    async with asyncio.timeout(30):
        await begun.wait()
        writer.transport.abort()
        await pool.num_closed.wait()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("data", [b"", b"GET /li", b"GET /live HTTP/1.1\r\nhost: x\r\n", b"\r\n\r\n"])
async def test_a_connection_that_sends_no_whole_request_is_closed_in_time(
    hasty_url: str, data: bytes
) -> None:
    answer = await talk(hasty_url, data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")
    if data.startswith(b"GET"):
        assert b'"code":"request_timeout"' in answer


async def test_a_byte_at_a_time_does_not_buy_time(hasty_url: str) -> None:
    target = urlsplit(hasty_url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    answer = asyncio.create_task(reader.read())
    async with asyncio.timeout(30):
        for byte in LIVE[:-4] * 100:
            if answer.done():
                break
            writer.write(bytes([byte]))
            await asyncio.wait({answer}, timeout=0.02)
        assert (await answer).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_second_request_has_its_own_time(hasty_url: str) -> None:
    answer = await talk(hasty_url, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /live HT")
    assert answer.count(b"HTTP/1.1 200 ") == 1
    assert answer.count(b"HTTP/1.1 408 ") == 1


async def test_pipelined_requests_are_answered_in_order_up_to_a_bound(url: str) -> None:
    one = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
    assert (await talk(url, one * 4 + LIVE)).count(b"HTTP/1.1 200 ") == 5
    flooded = await talk(url, one * 5000)
    assert STATUS.findall(flooded) == [b"200"] * (1 + MAX_PIPELINED) + [b"400"]
    assert b"Too many pipelined requests" in flooded


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
async def test_upgrades_are_not_offered(url: str, upgrade: bytes) -> None:
    headers = (
        b"upgrade: " + upgrade,
        b"connection: upgrade",
        b"sec-websocket-key: x",
        b"sec-websocket-version: 13",
    )
    upgrading = request(*headers).replace(b"connection: close\r\n", b"")
    assert STATUS.findall(await talk(url, upgrading + LIVE)) == [b"200", b"200"]


IN_CHUNKS = b"2\r\n{}\r\n0\r\n%b\r\n"


def upgrading(*headers: bytes) -> bytes:
    """The head of a POST that has a body and asks for another protocol."""
    asked = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c")
    return request(*headers, line=b"POST /v1/completions HTTP/1.1").replace(
        b"connection: close", b"\r\n".join(asked)
    )


@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "in two"])
@pytest.mark.parametrize(
    ("framing", "body"),
    [(b"content-length: 2", b"{}"), (b"transfer-encoding: chunked", IN_CHUNKS % b"")],
    ids=["with a length", "in chunks"],
)
async def test_a_body_behind_an_upgrade_that_is_not_taken_is_read_as_one(
    url: str, framing: bytes, body: bytes, *, apart: bool
) -> None:
    head = upgrading(b"content-type: application/json", framing)
    pieces = (head, body + LIVE) if apart else (head + body + LIVE,)
    answer = await talk(url, *pieces)
    assert STATUS.findall(answer) == [b"400", b"200"]
    assert b"prompt is missing" in answer


async def test_requests_follow_each_other_whether_they_ask_for_an_upgrade_or_not(url: str) -> None:
    asking = (b"connection: upgrade", b"upgrade: h2c")
    plain = request(*asking).replace(b"connection: close\r\n", b"")
    with_body = upgrading(b"content-type: application/json", b"content-length: 2") + b"{}"
    empty = upgrading(b"content-type: application/json", b"content-length: 0")
    answer = await talk(url, plain + post({}) + with_body + plain + empty + with_body + LIVE)
    assert STATUS.findall(answer) == [b"200", b"400", b"400", b"200", b"400", b"400", b"200"]


async def test_a_trailer_is_no_header(url: str) -> None:
    answer = await talk(url, CHUNKED + IN_CHUNKS % b"x-request-id: from-the-trailer\r\n")
    assert STATUS.findall(answer) == [b"400"]
    assert b"from-the-trailer" not in answer


async def test_connections_beyond_the_bound_are_refused_and_room_comes_back(
    make_server: ServerFactory,
) -> None:
    url = await make_server(max_connections_per_address=2, header_timeout_s=30)
    target = urlsplit(url)
    held = [await asyncio.open_connection(target.hostname, target.port) for _ in range(2)]
    for reader, writer in held:
        writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    refused = await talk(url)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"too many connections" in refused
    assert b"retry-after: 1" in refused
    reader, writer = held[0]
    writer.write(LIVE)
    async with asyncio.timeout(30):
        await reader.read()
    assert (await talk(url, LIVE)).startswith(b"HTTP/1.1 200 ")
    for _, writer in held:
        writer.close()


async def test_a_refused_client_that_sends_at_once_gets_the_refusal(
    make_server: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As long as it takes; each client closes its connection first.
    monkeypatch.setattr(http_protocol, "LINGER_S", 60)
    url = await make_server(max_connections_per_address=1, header_timeout_s=30)
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    writer.write(ONE)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")

    def ask() -> bytes:
        # Sends before it looks for an answer; what is not read then would reset the connection.
        with socket.create_connection((target.hostname, target.port), 30) as client:
            client.sendall(LIVE)
            return client.makefile("rb").read()

    for _ in range(20):
        assert (await asyncio.to_thread(ask)).startswith(b"HTTP/1.1 503 ")
    writer.close()


def test_only_so_many_refused_connections_linger() -> None:
    limits = ConnectionLimits(make_config())
    assert [limits.linger() for _ in range(MAX_LINGERING + 1)] == [True] * MAX_LINGERING + [False]
    limits.end_linger()
    assert limits.linger()


def test_connections_are_counted_in_all_and_per_address() -> None:
    limits = ConnectionLimits(make_config(max_connections=3, max_connections_per_address=2))
    assert [limits.enter(address) for address in ("a", "a", "a", "b")] == [True, True, False, False]
    for address in ("a", "a"):
        limits.leave(address)
    assert limits.enter("b")
    for address in ("a", "b", "b"):
        limits.leave(address)
    assert not limits._open


def test_a_refused_connection_gives_its_place_back_at_once_and_then_that_of_one_that_lingers() -> None:
    limits = ConnectionLimits(make_config(max_connections=1))
    taken, refused = ConnectionPlace(limits, "a"), ConnectionPlace(limits, "a")
    assert (taken.is_free, refused.is_free) == (True, False)
    assert refused.refuse()
    assert limits.num_open == 1
    assert [limits.linger() for _ in range(MAX_LINGERING)] == [True] * (MAX_LINGERING - 1) + [False]
    refused.leave()
    refused.leave()
    assert [limits.linger() for _ in range(2)] == [True, False]
    taken.leave()
    assert limits.num_open == 0


async def test_a_connection_that_is_reset_leaves_no_timer_behind(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A timer holds all of the connection until it is due.
    left: asyncio.Queue[tuple[Exception | None, object, object]] = asyncio.Queue()
    lose = http_protocol.BoundedHttpProtocol.connection_lost

    def watched(self: http_protocol.BoundedHttpProtocol, error: Exception | None) -> None:
        lose(self, error)
        left.put_nowait((error, self.timeout_keep_alive_task, self._timer))

    monkeypatch.setattr(http_protocol.BoundedHttpProtocol, "connection_lost", watched)
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    writer.write(LIVE.replace(b"connection: close\r\n", b""))
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
    await reader.readuntil(b"}")
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    async with asyncio.timeout(60):
        error, *timers = await left.get()
    assert isinstance(error, ConnectionResetError)
    assert timers == [None, None]
