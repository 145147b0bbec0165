"""Clients that close their sending half behind a request: they are answered; those that left are not."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.connection.bare_answer import CONTINUE
from splitserve.frontend.http.connection.half_closed import is_gone
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.connection.test_http_protocol import ONE, STATUS, post, talk
from tests.frontend.http.fake_pool import FakePool

DEADLINE_S = 60


class Held:
    """A script that says `first`, waits to be released, and says the rest."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.begun = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for char in self.first:
            yield OutputDelta(0, char, [ord(char)])
        self.begun.set()
        await self.release.wait()
        yield OutputDelta(0, "end", [1, 2, 3], finish_reason="stop")


async def half_closed(url: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send bytes on a new connection (a socket's path or a URL) and close its sending half."""
    if url.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix:"))
    else:
        target = urlsplit(url)
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
    writer.write(data)
    writer.write_eof()
    return reader, writer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("where", ["tcp", "unix"])
async def test_an_answer_that_takes_its_time_comes_whole(
    make_server: ServerFactory, pool: FakePool, stream: bool, where: str, tmp_path: Path
) -> None:
    pool.script = script = Held("")
    url = await make_server(**({"uds": str(tmp_path / "http.sock")} if where == "unix" else {}))
    reader, writer = await half_closed(url, post({"prompt": "x", "stream": stream}))
    async with asyncio.timeout(DEADLINE_S):
        # What every client of HTTP/1.1 skips; it comes when the end of the client's half has been seen.
        assert await reader.readexactly(len(CONTINUE)) == CONTINUE
        script.release.set()
        answer = await reader.read()
    assert STATUS.findall(answer) == [b"200"]
    assert b'"text":"end"' in answer
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")
    writer.close()


async def test_a_stream_that_has_begun_goes_on(make_server: ServerFactory, pool: FakePool) -> None:
    pool.script = script = Held("ab")
    url = await make_server(sse_keep_alive_s=0)
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    writer.write(post({"prompt": "x", "stream": True}))
    async with asyncio.timeout(DEADLINE_S):
        await reader.readuntil(b'"text":"b"')
        writer.write_eof()
        await reader.readuntil(b": keep-alive\n\n")
        script.release.set()
        rest = await reader.read()
    assert b'"text":"end"' in rest
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()


async def test_all_requests_of_a_pipeline_are_answered(make_server: ServerFactory) -> None:
    data = ONE + post({"prompt": "x"}) + post({"prompt": "y", "stream": True}) + ONE
    answer = await talk(await make_server(), data, half_close=True)
    assert [status for status in STATUS.findall(answer) if status != b"100"] == [b"200"] * 4
    assert answer.endswith(b'{"status":"ok"}')


async def test_what_cannot_be_read_is_refused_behind_the_answers(make_server: ServerFactory) -> None:
    answer = await talk(await make_server(), post({"prompt": "x"}) + b"GARBAGE\r\n\r\n", half_close=True)
    assert [status for status in STATUS.findall(answer) if status != b"100"] == [b"200", b"400"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_of_http_1_0_is_answered(make_server: ServerFactory, stream: bool) -> None:
    data = post({"prompt": "x", "stream": stream}, b"HTTP/1.0")
    answer = await talk(await make_server(), data, half_close=True)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"data: [DONE]\n\n" if stream else b"}")


@pytest.mark.parametrize("end", [-1, -20])
async def test_a_request_that_is_not_whole_ends_with_its_half(
    make_server: ServerFactory, pool: FakePool, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert await talk(await make_server(), post({"prompt": "x"})[:end], half_close=True) == b""
    assert not pool.seen
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_client_that_left_a_unix_socket_is_noticed_without_a_probe(
    make_server: ServerFactory, pool: FakePool, tmp_path: Path
) -> None:
    pool.script = script = Held("")
    url = await make_server(uds=str(tmp_path / "http.sock"))
    _, writer = await asyncio.open_unix_connection(url.removeprefix("unix:"))
    writer.write(post({"prompt": "x"}))
    async with asyncio.timeout(DEADLINE_S):
        await script.begun.wait()
        writer.close()
        await pool.num_closed.wait()


def test_a_peer_is_gone_when_both_its_halves_are_closed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not is_gone(ours.fileno())
        theirs.shutdown(socket.SHUT_WR)
        assert not is_gone(ours.fileno())
        theirs.close()
        assert is_gone(ours.fileno())


def test_a_peer_over_tcp_is_gone_when_something_sent_to_it_was_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        with ours:
            theirs.close()
            assert ours.recv(1) == b""
            assert not is_gone(ours.fileno())
            ours.send(CONTINUE)
            poll = select.poll()
            poll.register(ours.fileno(), 0)
            assert poll.poll(DEADLINE_S * 1000)
            assert is_gone(ours.fileno())
