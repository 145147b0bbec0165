"""Frontends that share one response store, over one pool without engines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from tests.frontend.http.app_fixtures import ServerFactory, make_server, pool

__all__ = ["make_server", "pool"]

FrontendFactory = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def make_frontend(make_server: ServerFactory, tmp_path: Path) -> AsyncGenerator[FrontendFactory, None]:
    """Start frontends with the same store and connect to them; keywords are fields of FrontendConfig."""
    clients: list[httpx.AsyncClient] = []

    async def make(**changes: object) -> httpx.AsyncClient:
        url = await make_server(**({"response_store": str(tmp_path / "responses.db")} | changes))
        clients.append(httpx.AsyncClient(base_url=url, timeout=30))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
async def frontend(make_frontend: FrontendFactory) -> httpx.AsyncClient:
    return await make_frontend()


@pytest.fixture
async def other_frontend(frontend: httpx.AsyncClient, make_frontend: FrontendFactory) -> httpx.AsyncClient:
    return await make_frontend(frontend_id="other")
