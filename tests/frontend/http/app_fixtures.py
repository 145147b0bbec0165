"""Fixtures: apps in process and real servers on loopback, over a fake pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from splitserve.frontend.app import create_app
from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.http.connection.body_writer import BODY_EXTENSION, BodyWriter
from splitserve.frontend.http_server import FrontendServer, describe, open_listener
from tests.frontend.http.fake_pool import FakePool

ENGINES = ("ipc:///tmp/never-connected",)


def make_config(**changes: Any) -> FrontendConfig:
    """A configuration for tests; `changes` are fields of FrontendConfig."""
    config = FrontendConfig(engines=ENGINES, **changes)
    config.validate()
    return config


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


ClientFactory = Callable[..., httpx.AsyncClient]


class BodyTransport(asyncio.Transport):
    """What a BodyWriter needs of a connection, over ASGI's send(), which never waits in this process."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Say that it is encrypted: there is no socket to write to."""
        assert name == "sslcontext"
        return self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take one chunk of the chunked encoding."""
        size, _, body = bytes(data).partition(b"\r\n")
        assert len(body) == int(size, 16) + 2
        sending: Any = self._send({"type": "http.response.body", "body": body[:-2], "more_body": True})
        with pytest.raises(StopIteration):
            sending.send(None)


def with_body_writers(app: ASGIApp) -> ASGIApp:
    """Give requests of an app in this process what our HTTP protocol gives them."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        def make(on_change: Callable[[], None]) -> BodyWriter:
            return BodyWriter(BodyTransport(send), on_change, paused=False)

        await app({**scope, "extensions": {BODY_EXTENSION: make}}, receive, send)

    return run


@pytest.fixture
async def make_client(pool: FakePool) -> AsyncGenerator[ClientFactory, None]:
    """Make HTTP clients of an app in this process; keywords are fields of FrontendConfig."""
    clients: list[httpx.AsyncClient] = []

    def make(**changes: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(with_body_writers(create_app(make_config(**changes), pool)))
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://frontend"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
def client(make_client: ClientFactory) -> httpx.AsyncClient:
    return make_client()


@contextlib.asynccontextmanager
async def serving(pool: EnginePool, **changes: Any) -> AsyncGenerator[tuple[str, FrontendServer], None]:
    """A real server on loopback in this event loop; yields its URL (or socket path) and the server."""
    config = make_config(**({"port": 0} | changes))
    listener = open_listener(config)
    address = describe(config, listener)
    server = FrontendServer(create_app(config, pool), pool, config, address)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield address, server
    finally:
        if not task.done():
            server.should_exit = True
        await task
        listener.close()


ServerFactory = Callable[..., Awaitable[str]]


@pytest.fixture
async def make_server(pool: FakePool) -> AsyncGenerator[ServerFactory, None]:
    """Start servers; keywords are fields of FrontendConfig; returns the URL."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**changes: Any) -> str:
            address, _ = await stack.enter_async_context(serving(pool, **changes))
            return address

        yield make
