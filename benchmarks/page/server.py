"""A server for the page to be looked at: engine, frontend, and clients of four tenants that keep it busy."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator

import httpx

from benchmarks.startup import free_port

TENANTS = ("search", "support", "research", "batch")
LIMIT_S = 60.0
QUESTIONS = (
    "Tell me a short story",
    "Count from 1 to 20",
    "What is a compiler?",
    "Give me a JSON object with the capital of Japan",
)


@contextlib.contextmanager
def running(*engine_flags: str) -> Iterator[str]:
    """Run engine-core with these flags and one api-frontend; yields its address."""
    with tempfile.TemporaryDirectory(prefix="ss-") as folder, contextlib.ExitStack() as stack:
        engine, port = f"ipc://{folder}/engine.sock", free_port()
        flags = ["--engine", engine, "--port", str(port), "--tenant-header", "x-tenant"]
        for module, arguments in (
            ("engine_core", ["--listen", engine, "--log-level", "warning", *engine_flags]),
            ("frontend", ["--log-level", "warning", *flags]),
        ):
            process = subprocess.Popen([sys.executable, "-m", f"splitserve.{module}.cli", *arguments])
            stack.callback(process.wait)
            stack.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url)
        yield url


def _wait_ready(url: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        time.sleep(0.1)
    raise TimeoutError("the server is not ready")


@contextlib.asynccontextmanager
async def kept_busy(url: str, num_clients: int, *, max_tokens: int, prompt_words: int) -> AsyncIterator[None]:
    """Keep so many streams open, each followed by the next, until the block ends."""
    limits = httpx.Limits(max_connections=num_clients)
    async with (
        httpx.AsyncClient(base_url=url, limits=limits, timeout=None) as client,
        asyncio.TaskGroup() as group,
    ):
        tasks = [
            group.create_task(_ask_on(client, number, max_tokens, prompt_words))
            for number in range(num_clients)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _ask_on(client: httpx.AsyncClient, number: int, max_tokens: int, prompt_words: int) -> None:
    # The first tenant has half of them, the second a quarter.
    tenant = TENANTS[min((number & -number).bit_length() - 1, 3) if number else 3]
    for turn in range(10**6):
        filler = " ".join(
            f"word{(number * 7 + turn * i) % 50}" for i in range(prompt_words * (1 + number % 3))
        )
        body = {
            "messages": [
                {"role": "system", "content": "You are a helpful assistant. " * 6},
                {"role": "user", "content": f"{filler} {QUESTIONS[(number + turn) % len(QUESTIONS)]}"},
            ],
            "max_tokens": max_tokens + 16 * (number % 5),
            "ignore_eos": True,
            "stream": True,
        }
        async with client.stream(
            "POST", "/v1/chat/completions", json=body, headers={"x-tenant": tenant}
        ) as answer:
            async for _ in answer.aiter_raw():
                pass
