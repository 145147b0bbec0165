"""One line per request, with ids and sizes and without anybody's text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.fake_pool import FakePool


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """All lines logged so far; a list that grows."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Collect()
    logger = logging.getLogger("frontend")
    logger.addHandler(handler)
    caplog.set_level(logging.INFO, "frontend")
    yield found
    logger.removeHandler(handler)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation_is_one_line_with_its_sizes(
    client: httpx.AsyncClient, lines: list[str], stream: bool
) -> None:
    body = {"prompt": "very private", "stream": stream, "request_id": "r1"}
    response = await client.post("/v1/completions", json=body)
    (line,) = lines
    assert line.startswith("request request_id=")
    assert f"bytes={len(response.content)} " in f"{line} "
    for part in (
        "status=200",
        "path=/v1/completions",
        "prompt_tokens=13",
        "completion_tokens=8",
        "id=cmpl-r1",
    ):
        assert part in line, line
    assert "private" not in line
    assert "Hi there" not in line


async def test_probes_are_logged_only_when_they_fail(
    client: httpx.AsyncClient, pool: FakePool, lines: list[str]
) -> None:
    for path in ("/live", "/health", "/ready", "/metrics"):
        await client.get(path)
    assert lines == []
    pool.state = "lost"
    await client.get("/ready")
    assert "status=503" in lines[0]


async def test_no_path_can_forge_a_line(client: httpx.AsyncClient, lines: list[str]) -> None:
    await client.get("/x%0arequest%20status=200%1b[31m" + "y" * 5000)
    (line,) = lines
    assert "\n" not in line
    assert "\x1b" not in line
    assert 'path="/x\\nrequest status=200' in line
    assert len(line) < 500


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error_of_ours(
    make_server: ServerFactory, lines: list[str]
) -> None:
    target = urlsplit(await make_server())
    _, writer = await asyncio.open_connection(target.hostname, target.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b'content-length: 100\r\n\r\n{"prompt"'
    )
    await writer.drain()
    writer.close()
    async with asyncio.timeout(30):
        while not any(line.startswith("request ") for line in lines):
            await asyncio.sleep(0.005)
    assert not any("unhandled" in line or "Traceback" in line for line in lines)
    assert "status=499" in lines[-1]
    assert "client_gone=True" in lines[-1]
