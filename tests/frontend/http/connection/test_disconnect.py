"""Clients that hang up: whatever the request is doing, its generations are closed at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.fake_pool import FakePool


async def send_request(url: str, path: str, body: dict) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send one POST on it."""
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json"]
    head = "\r\n".join([*lines, f"content-length: {len(data)}", "", ""])
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


class Hanging:
    """A script that gives `num_deltas` deltas, then nothing for ever; `begun` is set when it waits."""

    def __init__(self, num_deltas: int) -> None:
        self.num_deltas = num_deltas
        self.begun = asyncio.Event()

    async def __call__(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for _ in range(self.num_deltas):
            yield OutputDelta(0, "a", [97])
        self.begun.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("prompt", ["one", ["several", "prompts", "at once"]], ids=["one", "three"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("num_deltas", [0, 3])
@pytest.mark.parametrize("abruptly", [False, True], ids=["fin", "rst"])
async def test_a_hung_up_client_closes_every_generation(
    make_server: ServerFactory,
    pool: FakePool,
    prompt: str | list[str],
    stream: bool,
    num_deltas: int,
    abruptly: bool,
) -> None:
    pool.script = script = Hanging(num_deltas)
    url = await make_server()
    _, writer = await send_request(url, "/v1/completions", {"prompt": prompt, "stream": stream})
    async with asyncio.timeout(30):
        await script.begun.wait()
        if abruptly:
            writer.transport.abort()
        else:
            writer.close()
        count = 1 if isinstance(prompt, str) else len(prompt)
        while len(pool.closed) < count:
            pool.num_closed.clear()
            await pool.num_closed.wait()


async def test_a_client_that_leaves_while_its_stream_is_kept_alive_is_noticed(
    make_server: ServerFactory, pool: FakePool
) -> None:
    pool.script = Hanging(0)
    url = await make_server(sse_keep_alive_s=0.01)
    reader, writer = await send_request(url, "/v1/completions", {"prompt": "x", "stream": True})
    async with asyncio.timeout(30):
        await reader.readuntil(b": keep-alive\n\n")
        writer.close()
        await pool.num_closed.wait()


async def test_the_next_request_of_a_connection_is_served_after_a_stream(
    make_server: ServerFactory, pool: FakePool
) -> None:
    url = await make_server()
    reader, writer = await send_request(url, "/v1/completions", {"prompt": "x", "stream": True})
    async with asyncio.timeout(30):
        await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_streams_that_were_asked_for_at_once_come_one_after_the_other(
    make_server: ServerFactory, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for _ in range(3):
            yield OutputDelta(0, chr(request.prompt_token_ids[-1]), [97])
            await asyncio.sleep(0)
        yield OutputDelta(0, ".", [98], finish_reason="stop")

    pool.script = script
    url = await make_server()
    reader, writer = await send_request(url, "/v1/completions", {"prompt": "a", "stream": True})
    data = json.dumps({"prompt": "b", "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
    async with asyncio.timeout(30):
        bodies = [await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n") for _ in range(2)]
    texts = ["".join(re.findall('"text":"(.)"', body.decode())) for body in bodies]
    assert texts == ["aaa.", "bbb."]
    writer.close()
