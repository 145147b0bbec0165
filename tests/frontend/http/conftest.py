"""Apps in process and real servers on loopback, over a fake pool."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import httpx
import pytest

from frontend.app import create_app
from frontend.config import FrontendConfig
from tests.frontend.http.fake_pool import FakePool

ENGINES = ("ipc:///tmp/never-connected",)


def make_config(**changes: object) -> FrontendConfig:
    """A configuration for tests; `changes` are fields of FrontendConfig."""
    config = FrontendConfig(engines=ENGINES, **changes)
    config.validate()
    return config


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


ClientFactory = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def make_client(pool: FakePool) -> AsyncGenerator[ClientFactory, None]:
    """Make HTTP clients of an app in this process; keywords are fields of FrontendConfig."""
    clients: list[httpx.AsyncClient] = []

    def make(**changes: object) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(create_app(make_config(**changes), pool))
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://frontend"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
def client(make_client: ClientFactory) -> httpx.AsyncClient:
    return make_client()
