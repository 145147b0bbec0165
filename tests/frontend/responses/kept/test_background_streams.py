"""background: true with stream: true: events that outlive their reader, read anywhere, from any number on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from splitserve.engine_core.errors import EngineRequestError
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.response_store import store as store_module
from splitserve.frontend.response_store.errors import StoreUnavailableError
from splitserve.frontend.response_store.sql import SqlDatabase
from splitserve.frontend.responses.kept import background, event_log, replay
from tests.frontend.http.app_fixtures import serving
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.responses.kept.asking import PATH, create, error, get
from tests.frontend.responses.recorded import events, response_of

BODY = {"input": "hello", "background": True, "stream": True}
STREAM = {"stream": "true"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RENEW_S", 0.01)
    monkeypatch.setattr(event_log, "FLUSH_S", 0.01)
    monkeypatch.setattr(replay, "POLL_S", 0.01)


@pytest.fixture
async def gate(pool: FakePool) -> AsyncGenerator[asyncio.Event, None]:
    """What the second of three tokens waits for."""
    found = asyncio.Event()

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        await found.wait()
        yield OutputDelta(0, " there", [2])
        yield OutputDelta(0, "", [3], finish_reason="stop")

    pool.script = script
    yield found
    # A frontend that ends would wait for it.
    found.set()


async def read(client: httpx.AsyncClient, response_id: str, after: int | None = None) -> str:
    """All events of a kept response, as they came."""
    query = STREAM if after is None else STREAM | {"starting_after": str(after)}
    response = await client.get(f"{PATH}/{response_id}", params=query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return response.text


async def begin(client: httpx.AsyncClient, num_events: int) -> tuple[str, str]:
    """Read the first events of a new response, then hang up; return its id and them."""
    text = ""
    async with client.stream("POST", PATH, json=BODY) as response:
        assert response.status_code == 200
        async for chunk in response.aiter_text():
            text += chunk
            if text.count("\n\n") >= num_events:
                break
    return events(text)[0]["response"]["id"], text


async def test_it_is_streamed_as_any_other(frontend: httpx.AsyncClient) -> None:
    response = await frontend.post(PATH, json=BODY)
    found = response_of(events(response.text))
    assert (found["status"], found["background"], found["store"]) == ("completed", True, True)
    assert await get(frontend, found["id"]) == found
    assert await read(frontend, found["id"]) == response.text


async def test_it_is_read_on_elsewhere_after_a_hang_up(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient, gate: asyncio.Event
) -> None:
    response_id, text = await begin(frontend, 5)
    seen = events(text)
    reading = asyncio.create_task(read(other_frontend, response_id, len(seen) - 1))
    whole = asyncio.create_task(read(other_frontend, response_id))
    gate.set()
    text += await reading
    assert text == await whole
    assert response_of(events(text))["output"][0]["content"][0]["text"] == "Hi there"


async def test_it_is_read_from_any_number_on(frontend: httpx.AsyncClient, pool: FakePool) -> None:
    text = (await frontend.post(PATH, json=BODY)).text
    found = events(text)
    response_id = found[0]["response"]["id"]
    blocks = text.split("\n\n")
    for after in range(len(found) + 2):
        assert await read(frontend, response_id, after) == "\n\n".join(blocks[after + 1 :])


async def test_what_is_refused_has_its_own_status(frontend: httpx.AsyncClient) -> None:
    status, found = await error(frontend, "POST", "", json=BODY | {"temperature": 3})
    assert (status, found["param"]) == (400, "temperature")


async def test_an_error_is_the_last_event(frontend: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        raise EngineRequestError("no luck")

    pool.script = script
    last = events((await frontend.post(PATH, json=BODY)).text)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")


async def test_a_cancellation_is_the_last_event(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient, gate: asyncio.Event
) -> None:
    response_id, _ = await begin(frontend, 5)
    reading = asyncio.create_task(read(frontend, response_id))
    await other_frontend.post(f"{PATH}/{response_id}/cancel")
    last = events(await reading)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")


async def test_a_deletion_ends_a_stream_with_an_error(
    frontend: httpx.AsyncClient, gate: asyncio.Event
) -> None:
    begun = asyncio.Event()
    text = ""

    async def follow(response_id: str) -> None:
        nonlocal text
        async with frontend.stream("GET", f"{PATH}/{response_id}", params=STREAM) as response:
            async for chunk in response.aiter_text():
                text += chunk
                begun.set()

    response_id, _ = await begin(frontend, 5)
    reading = asyncio.create_task(follow(response_id))
    await begun.wait()
    await frontend.delete(f"{PATH}/{response_id}")
    await reading
    last = events(text)[-1]
    assert (last["type"], last["code"]) == ("error", "response_not_found")


async def test_a_shutdown_ends_a_stream(pool: FakePool, gate: asyncio.Event, tmp_path: Path) -> None:
    place, begun = str(tmp_path / "responses.db"), asyncio.Event()
    text = ""

    async def follow(client: httpx.AsyncClient, response_id: str) -> None:
        nonlocal text
        async with client.stream("GET", f"{PATH}/{response_id}", params=STREAM) as response:
            async for chunk in response.aiter_text():
                text += chunk
                begun.set()

    async with (
        serving(pool, response_store=place, shutdown_timeout_s=0.1) as (url, server),
        httpx.AsyncClient(base_url=url) as client,
    ):
        response_id, _ = await begin(client, 5)
        reading = asyncio.create_task(follow(client, response_id))
        await begun.wait()
        server.handle_exit(signal.SIGTERM, None)
        await reading
    last = events(text)[-1]
    assert last["type"] in ("error", "response.failed")
    async with serving(pool, response_store=place) as (url, _), httpx.AsyncClient(base_url=url) as client:
        assert (await get(client, response_id))["status"] == "failed"


async def test_a_store_that_fails_for_a_while_loses_no_event(
    frontend: httpx.AsyncClient, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_tries = 0
    real = SqlDatabase.append

    async def append(self: SqlDatabase, *args: Any) -> bool:
        nonlocal num_tries
        num_tries += 1
        done = await real(self, *args)
        if num_tries < 6:
            # Written or not: the caller cannot tell.
            raise StoreUnavailableError("broken")
        return done

    monkeypatch.setattr(SqlDatabase, "append", append)
    monkeypatch.setattr(store_module, "FAILING_S", 0.0)
    gate.set()
    made = response_of(events((await frontend.post(PATH, json=BODY)).text))
    assert made["output"][0]["content"][0]["text"] == "Hi there"
    assert num_tries >= 6


async def test_without_its_events_a_background_response_is_returned(frontend: httpx.AsyncClient) -> None:
    made = await create(frontend, background=True)
    status, found = await error(frontend, "GET", f"/{made['id']}", params=STREAM)
    assert (status, found["param"]) == (400, "stream")
