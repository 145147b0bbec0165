"""Clients of HTTP/1.0: no chunks, no interim answers, one request per connection."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import pytest

from splitserve.engine_core.errors import EngineRequestError
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.connection.test_http_protocol import post, talk
from tests.frontend.http.fake_pool import FakePool, turns


def split(answer: bytes) -> tuple[bytes, bytes]:
    """Head and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


async def test_a_stream_ends_with_its_connection_and_has_no_chunks(make_server: ServerFactory) -> None:
    url = await make_server()
    body = {"prompt": "x", "stream": True, "request_id": "one"}
    head, plain = split(await talk(url, post(body, b"HTTP/1.0")))
    _, chunked = split(await talk(url, post(body).replace(b"host: x", b"host: x\r\nconnection: close")))
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert plain.endswith(b"data: [DONE]\n\n")
    # The same events as a later client gets in chunks.
    joined = b"".join(re.findall(rb"\r\n(data: .*?\n\n)(?=\r\n)", b"\r\n" + chunked, re.DOTALL))
    strip = re.compile(rb'"created":\d+')
    assert strip.sub(b"", plain) == strip.sub(b"", joined)


async def test_an_error_in_a_stream_is_its_last_event(make_server: ServerFactory, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        await turns()
        raise EngineRequestError("broken")

    pool.script = script
    _, body = split(await talk(await make_server(), post({"prompt": "x", "stream": True}, b"HTTP/1.0")))
    assert body.endswith(b"data: [DONE]\n\n")
    assert b'"code":"request_failed"' in body


@pytest.mark.parametrize("line", [b"GET /live", b"HEAD /live", b"GET /nothing"])
async def test_whole_answers_keep_their_length(make_server: ServerFactory, line: bytes) -> None:
    head, body = split(await talk(await make_server(), line + b" HTTP/1.0\r\n\r\n"))
    found = re.search(rb"content-length: (\d+)", head)
    assert found
    length = int(found[1])
    assert length > 0
    assert len(body) == (0 if line.startswith(b"HEAD") else length)
    assert b"connection: close" in head
