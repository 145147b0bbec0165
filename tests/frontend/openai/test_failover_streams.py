"""Streams over HTTP whose engine is killed under them: each shows what it would have shown undisturbed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.app.simulated import simulated_engine
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.http.app_fixtures import serving
from tests.frontend.http.response.sse_events import events

pytestmark = pytest.mark.system

DEADLINE_S = 60.0
STREAM: dict[str, Any] = {
    "prompt": "hello world",
    "max_tokens": 150,
    "ignore_eos": True,
    "seed": 5,
    "stream": True,
    "stream_options": {"include_usage": True},
}
# Plain text is written by native code; everything else by Python.
BODIES: dict[str, dict[str, Any]] = {
    "native": {},
    "n": {"n": 3},
    "logprobs": {"logprobs": 2},
    "stop": {"stop": ["\u0001never"]},
    "penalties": {"frequency_penalty": 0.7},
    "whole": {"stream": False, "stream_options": None},
}


def shown(text: str) -> Any:
    """All that a client sees but ids and times, however steps were joined into events."""
    chunks = (
        events(text)
        if text.startswith("data:") or "\ndata:" in text
        else [httpx.Response(200, text=text).json()]
    )
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    found: dict[int, list[Any]] = {}
    for choice in choices:
        of_one = found.setdefault(choice["index"], ["", [], None])
        of_one[0] += choice["text"]
        if choice.get("logprobs"):
            of_one[1] += choice["logprobs"]["token_logprobs"]
        of_one[2] = choice["finish_reason"] or of_one[2]
    return found, chunks[-1]["usage"]


async def test_streams_of_every_kind_go_on_at_another_engine(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    slow = ("--simulated-step-ms", "10", "--max-num-waiting", "100")
    with simulated_engine(checkpoint, *slow) as first, simulated_engine(checkpoint, *slow) as second:
        pool = EnginePool([first.address, second.address], "http-test")
        async with (
            serving(pool) as (url, _),
            httpx.AsyncClient(timeout=DEADLINE_S) as client,
            asyncio.timeout(DEADLINE_S),
        ):
            while [status.state for status in pool.status()] != ["ready", "ready"]:
                await asyncio.sleep(0.01)

            async def ask(body: dict[str, Any]) -> Any:
                return shown((await client.post(f"{url}/v1/completions", json=STREAM | body)).text)

            bodies = [body for body in BODIES.values() for _ in range(4)]
            expected = await asyncio.gather(*map(ask, bodies))
            tasks = [asyncio.create_task(ask(body)) for body in bodies]
            # Until all are open, and some with native code; others still wait in the queue.
            num_sequences = sum(body.get("n", 1) for body in bodies)
            sequences = pool._replicas[0].client.session.sequences
            while pool.stats().num_open < num_sequences or not sequences.num_relayed:
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0.001)
            first.process.kill()
            assert await asyncio.gather(*tasks) == expected
            assert sum(pool.stats().failover.migrations.values()) > 10
            assert pool.stats().num_open == 0
