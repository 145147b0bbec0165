"""Signals: what open requests see of a first and of a second one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http_server import FrontendServer
from tests.frontend.http.app_fixtures import make_config, serving
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.http.response.sse_events import events, joined

TEXT = {"prompt": "x"}


class Held:
    """A script that gives one delta and the last one when it is released."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        self.begun.set()
        await self.release.wait()
        yield OutputDelta(0, "b", [98], finish_reason="stop")


async def started(url: str, pool: FakePool, script: Held, *, stream: bool) -> asyncio.Task[httpx.Response]:
    """Send a request and wait until its generation has begun."""
    pool.script = script

    async def post() -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.post(f"{url}/v1/completions", json=TEXT | {"stream": stream})

    task = asyncio.create_task(post())
    async with asyncio.timeout(30):
        await script.begun.wait()
    return task


async def test_a_first_signal_lets_open_streams_finish_and_takes_no_new_connection(pool: FakePool) -> None:
    script = Held()
    async with serving(pool) as (url, server):
        task = await started(url, pool, script, stream=True)
        server.handle_exit(signal.SIGTERM, None)
        async with asyncio.timeout(30), httpx.AsyncClient() as client:
            refused = False
            while not refused:
                try:
                    await client.get(f"{url}/live", headers={"connection": "close"})
                except httpx.TransportError:
                    refused = True
        assert server._owners.health.shutting_down
        assert not task.done()
        script.release.set()
        assert joined(events((await task).text)) == "ab"
    assert server.exit_code == 0
    assert pool.stopped


async def test_a_draining_frontend_is_not_ready() -> None:
    from splitserve.frontend.operator.health import HealthProbe

    probe = HealthProbe(FakePool(), 1.0)
    assert (await probe.check()).status_code == 200
    probe.shutting_down = True
    response = await probe.check()
    assert response.status_code == 503
    assert b'"status":"draining"' in response.body


async def test_past_the_shutdown_time_a_stream_gets_an_error_event_and_done(pool: FakePool) -> None:
    async with serving(pool, shutdown_timeout_s=0.1) as (url, server):
        task = await started(url, pool, Held(), stream=True)
        server.handle_exit(signal.SIGTERM, None)
        chunks = events((await task).text)
    assert chunks[-1]["error"]["code"] == "shutting_down"
    assert chunks[-1]["error"]["type"] == "server_error"
    assert pool.closed
    assert server.exit_code == 0


async def test_past_the_shutdown_time_a_whole_answer_is_503(pool: FakePool) -> None:
    async with serving(pool, shutdown_timeout_s=0.1) as (url, server):
        task = await started(url, pool, Held(), stream=False)
        server.handle_exit(signal.SIGTERM, None)
        response = await task
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_a_request_on_its_way_when_draining_begins_is_answered(pool: FakePool, is_fresh: bool) -> None:
    request = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serving(pool) as (url, server), asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        if not is_fresh:
            writer.write(request)
            await reader.readuntil(b'{"status":"ok"}')
        while not server.server_state.connections:
            await asyncio.sleep(0)
        writer.write(request)
        (connection,) = server.server_state.connections
        connection.shutdown()
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer
    assert answer.endswith(b'{"status":"ok"}')


async def test_an_idle_connection_is_closed_when_draining_begins(pool: FakePool) -> None:
    async with serving(pool) as (url, server), asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        while not server.server_state.connections:
            await asyncio.sleep(0)
        server.handle_exit(signal.SIGTERM, None)
        assert await reader.read() == b""
        writer.close()


async def test_a_second_signal_ends_the_application_too(pool: FakePool) -> None:
    async with serving(pool) as (_, server):
        for _ in range(2):
            server.handle_exit(signal.SIGTERM, None)
    assert server.lifespan.shutdown_event.is_set()


async def test_a_second_signal_cuts_everything_at_once(pool: FakePool) -> None:
    async with serving(pool, shutdown_timeout_s=3600) as (url, server):
        task = await started(url, pool, Held(), stream=True)
        server.handle_exit(signal.SIGTERM, None)
        server.handle_exit(signal.SIGINT, None)
        async with asyncio.timeout(30):
            result = (await asyncio.gather(task, return_exceptions=True))[0]
    assert isinstance(result, httpx.TransportError)
    assert server.exit_code == 128 + signal.SIGINT
    assert pool.closed


async def test_a_signal_during_start_up_ends_the_server(pool: FakePool) -> None:
    from splitserve.frontend.app import create_app
    from splitserve.frontend.http_server import open_listener

    config = make_config(port=0)
    listener = open_listener(config)
    server = FrontendServer(create_app(config, pool), pool, config, "test")
    server.handle_exit(signal.SIGTERM, None)
    async with asyncio.timeout(30):
        await server.serve(sockets=[listener])
    assert server.exit_code == 0
    assert pool.stopped


async def test_a_repeated_signal_of_the_parents_death_does_not_cut_connections(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(pool) as (_, server):
        monkeypatch.setattr(os, "getppid", lambda: -1)
        for _ in range(2):
            server.handle_exit(signal.SIGTERM, None)
        assert (server.should_exit, server.force_exit, server.exit_code) == (True, False, 0)
