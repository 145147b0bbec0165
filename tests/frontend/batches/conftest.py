"""Fixtures of this folder: a frontend with a file store, asked by OpenAI's SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.conftest import addresses, client, engine, make_client, make_server, model, pool

__all__ = ["addresses", "client", "engine", "make_client", "make_server", "model", "pool"]

ClientFactory = Callable[..., Awaitable[AsyncOpenAI]]


@pytest.fixture
async def make_sdk(make_server: ServerFactory, tmp_path: Path) -> AsyncGenerator[ClientFactory, None]:
    """Start frontends on one file store; keywords are fields of FrontendConfig."""
    clients: list[AsyncOpenAI] = []

    async def make(**changes: Any) -> AsyncOpenAI:
        url = await make_server(**({"file_store": str(tmp_path / "files.db")} | changes))
        clients.append(AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0))
        return clients[-1]

    yield make
    for each in clients:
        await each.close()


def request_line(number: int, **body: Any) -> dict[str, Any]:
    """A line that asks for a chat."""
    asked = {"messages": [{"role": "user", "content": f"Say {number}"}], "max_tokens": 8}
    return {
        "custom_id": f"ask-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": asked | body,
    }


def batch_file(*lines: dict[str, Any]) -> bytes:
    """A file of these lines."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


async def ended(sdk: AsyncOpenAI, batch_id: str, *, deadline_s: float = 60.0) -> Batch:
    """Wait until a batch has ended."""
    return await until(sdk, batch_id, "completed", "failed", "cancelled", "expired", deadline_s=deadline_s)


async def until(sdk: AsyncOpenAI, batch_id: str, *statuses: str, deadline_s: float = 60.0) -> Batch:
    """Wait until a batch has one of these statuses."""
    async with asyncio.timeout(deadline_s):
        while (batch := await sdk.batches.retrieve(batch_id)).status not in statuses:
            await asyncio.sleep(0.02)
    return batch


async def start(sdk: AsyncOpenAI, data: bytes, **changes: Any) -> Batch:
    """Upload a file and make a batch of it."""
    uploaded = await sdk.files.create(file=("in.jsonl", data), purpose="batch")
    options = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | changes
    return await sdk.batches.create(input_file_id=uploaded.id, **options)


async def lines(sdk: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of a file of answers."""
    if file_id is None:
        return []
    content = (await sdk.files.content(file_id)).content
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]
