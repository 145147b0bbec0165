"""Hundreds of streams that are opened at once all get every token, and those that ran before go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from tests.system.processes import engine, frontend, wait_ready

pytestmark = [pytest.mark.system, pytest.mark.slow]

BURST = 400
NUM_TOKENS = 12
DEADLINE_S = 120.0
ENGINE: tuple[str, ...] = ("--executor", "simulated", "--simulated-step-ms", "5", "--max-num-seqs", "512")
ENGINE += ("--max-num-waiting", "512", "--num-blocks", "20000")


class Answer(NamedTuple):
    """Text and number of tokens of a stream that ended as it should."""

    text: str
    num_tokens: int


async def stream(url: str, max_tokens: int, begun: asyncio.Event | None = None) -> Answer:
    """Run one stream to its end; anything but a whole one fails."""
    target = urlsplit(url)
    body = {"prompt": "a burst", "seed": 7, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    data = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    )
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    text, usage = "", None
    async for line in reader:
        if not line.startswith(b"data: {"):
            assert not line.startswith(b"HTTP/1.1 ") or b" 200 " in line, line
            if line == b"data: [DONE]\n":
                break
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        text += "".join(choice["text"] for choice in event["choices"])
        usage = event.get("usage") or usage
        if begun is not None:
            begun.set()
    else:
        raise AssertionError(f"the stream ended early, after {text!r}")
    writer.close()
    assert usage is not None
    return Answer(text, usage["completion_tokens"])


async def burst_beside_a_stream(url: str) -> tuple[Answer, list[Answer], Answer]:
    """Return one stream alone, a burst of the same, and the long stream that ran all the time."""
    async with asyncio.timeout(DEADLINE_S):
        alone = await stream(url, NUM_TOKENS)
        begun = asyncio.Event()
        beside = asyncio.create_task(stream(url, 400, begun))
        await begun.wait()
        burst = await asyncio.gather(*(stream(url, NUM_TOKENS) for _ in range(BURST)))
        return alone, burst, await beside


def test_a_burst_of_streams_loses_nothing(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        address, core = stack.enter_context(engine(folder, *ENGINE))
        url, front = stack.enter_context(frontend(folder, address))
        wait_ready(url, core, front)
        alone, burst, beside = asyncio.run(burst_beside_a_stream(url))
        assert alone.num_tokens == NUM_TOKENS
        assert burst == [alone] * BURST
        assert beside.num_tokens == 400
        assert beside.text.startswith(alone.text)
        metrics = httpx.get(f"{url}/metrics", timeout=30).text
        assert re.findall(r"^splitserve:frontend_engines_lost_total{.*} (.*)$", metrics, re.MULTILINE) == [
            "0.0"
        ]
