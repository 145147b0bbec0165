"""background: true: begun at once, generated without a client, cancelled from anywhere, ended when lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from splitserve.engine_core.errors import EngineRequestError
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.response_store import store as store_module
from splitserve.frontend.response_store.errors import StoreUnavailableError
from splitserve.frontend.response_store.rows import Row, RowKey
from splitserve.frontend.response_store.sql import SqlDatabase
from splitserve.frontend.responses.kept import background
from tests.frontend.http.app_fixtures import serving
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.responses.kept.asking import PATH, create, error, get, items
from tests.frontend.responses.kept.conftest import FrontendFactory


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RENEW_S", 0.01)


class Steps:
    """A script of two tokens that goes on when the test says so."""

    def __init__(self, pool: FakePool) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        pool.script = self.script

    async def script(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        await self.first.wait()
        yield OutputDelta(0, "Hi", [1])
        await self.second.wait()
        yield OutputDelta(0, " there", [2], finish_reason="stop")

    def go_on(self) -> None:
        self.first.set()
        self.second.set()


@pytest.fixture
def steps(pool: FakePool) -> Iterator[Steps]:
    found = Steps(pool)
    yield found
    # A frontend that ends would wait for it.
    found.go_on()


async def until(client: httpx.AsyncClient, response_id: str, done: Callable[[Any], bool]) -> Any:
    """The response once it is so; pytest's timeout bounds the wait."""
    while not done(found := await get(client, response_id)):
        await asyncio.sleep(0.01)
    return found


async def ended(client: httpx.AsyncClient, response_id: str) -> Any:
    return await until(client, response_id, lambda found: found["status"] not in ("queued", "in_progress"))


async def test_it_is_queued_then_in_progress_then_completed(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient, steps: Steps
) -> None:
    made = await create(frontend, background=True)
    assert (made["status"], made["background"], made["store"], made["output"]) == ("queued", True, True, [])
    assert made["usage"] is None
    assert await get(other_frontend, made["id"]) == made
    steps.first.set()
    await until(other_frontend, made["id"], lambda found: found["status"] == "in_progress")
    steps.second.set()
    found = await ended(other_frontend, made["id"])
    assert found["status"] == "completed"
    assert found["output"][0]["content"][0]["text"] == "Hi there"
    assert found["usage"]["output_tokens"] == 2
    assert (await items(other_frontend, made["id"]))["data"][0]["content"][0]["text"] == "hello"


async def test_it_goes_on_when_the_client_is_gone(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient, steps: Steps
) -> None:
    made = await create(frontend, background=True)
    await frontend.aclose()
    steps.go_on()
    assert (await ended(other_frontend, made["id"]))["status"] == "completed"


async def test_what_is_wrong_is_said_at_once(frontend: httpx.AsyncClient) -> None:
    for body, param in (
        ({"temperature": 3}, "temperature"),
        ({"store": False}, "background"),
    ):
        status, found = await error(frontend, "POST", "", json={"input": "x", "background": True} | body)
        assert (status, found["param"]) == (400, param)


async def test_what_is_in_progress_is_not_continued(frontend: httpx.AsyncClient, steps: Steps) -> None:
    made = await create(frontend, background=True)
    status, found = await error(frontend, "POST", "", json={"input": "x", "previous_response_id": made["id"]})
    assert (status, found["param"]) == (400, "previous_response_id")
    assert "queued" in found["message"]
    steps.go_on()
    await ended(frontend, made["id"])
    await create(frontend, previous_response_id=made["id"])


async def test_it_is_cancelled(frontend: httpx.AsyncClient, pool: FakePool, steps: Steps) -> None:
    made = await create(frontend, background=True)
    response = await frontend.post(f"{PATH}/{made['id']}/cancel")
    cancelled = response.json()
    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    await pool.num_closed.wait()
    assert pool.closed == [made["id"]]
    assert await get(frontend, made["id"]) == cancelled
    again = await frontend.post(f"{PATH}/{made['id']}/cancel")
    assert again.json() == cancelled


async def test_it_is_cancelled_from_another_frontend(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient, pool: FakePool, steps: Steps
) -> None:
    made = await create(frontend, background=True)
    steps.first.set()
    await until(frontend, made["id"], lambda found: found["status"] == "in_progress")
    response = await other_frontend.post(f"{PATH}/{made['id']}/cancel")
    assert response.json()["status"] == "cancelled"
    await pool.num_closed.wait()
    assert pool.closed == [made["id"]]
    assert (await get(frontend, made["id"]))["status"] == "cancelled"


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_deletion_ends_it(
    frontend: httpx.AsyncClient,
    other_frontend: httpx.AsyncClient,
    pool: FakePool,
    steps: Steps,
    elsewhere: bool,
) -> None:
    made = await create(frontend, background=True)
    await (other_frontend if elsewhere else frontend).delete(f"{PATH}/{made['id']}")
    await pool.num_closed.wait()
    assert pool.closed == [made["id"]]
    assert (await error(frontend, "GET", f"/{made['id']}"))[0] == 404


async def test_what_has_ended_is_not_cancelled_any_more(frontend: httpx.AsyncClient) -> None:
    made = await create(frontend, background=True)
    found = await ended(frontend, made["id"])
    response = await frontend.post(f"{PATH}/{made['id']}/cancel")
    assert response.json() == found


async def test_an_error_ends_it(frontend: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        raise EngineRequestError("no luck")

    pool.script = script
    made = await create(frontend, background=True)
    found = await ended(frontend, made["id"])
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert found["output"][0]["content"][0]["text"] == "Hi"


async def test_a_bug_ends_it(frontend: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        raise ZeroDivisionError("a secret")

    pool.script = script
    made = await create(frontend, background=True)
    found = await ended(frontend, made["id"])
    assert (found["status"], found["error"]["message"]) == ("failed", "Internal server error.")


async def test_there_is_a_greatest_number(make_frontend: FrontendFactory, steps: Steps) -> None:
    client = await make_frontend(max_background_responses=1)
    made = await create(client, background=True)
    status, found = await error(client, "POST", "", json={"input": "x", "background": True})
    assert (status, found["code"]) == (429, "overloaded")
    metrics = (await client.get("/metrics")).text
    assert 'splitserve:frontend_background_responses{frontend="frontend-0"} 1.0' in metrics
    steps.go_on()
    await ended(client, made["id"])
    await create(client, background=True)


async def test_an_id_in_progress_is_not_taken_twice(frontend: httpx.AsyncClient, steps: Steps) -> None:
    await create(frontend, background=True, request_id="abc")
    status, found = await error(
        frontend, "POST", "", json={"input": "x", "background": True, "request_id": "abc"}
    )
    assert (status, found["param"]) == (400, "request_id")
    steps.go_on()


async def test_an_id_is_taken_again_once_it_was_cancelled_elsewhere(
    frontend: httpx.AsyncClient,
    other_frontend: httpx.AsyncClient,
    pool: FakePool,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The frontend that generates it has not heard of the cancellation.
    monkeypatch.setattr(background, "RENEW_S", 1000.0)
    await create(frontend, background=True, request_id="abc", input="one")
    await other_frontend.post(f"{PATH}/resp_abc/cancel")
    await create(frontend, background=True, request_id="abc", input="two")
    assert pool.closed == ["resp_abc"]
    steps.go_on()
    assert (await ended(frontend, "resp_abc"))["status"] == "completed"
    assert (await items(frontend, "resp_abc"))["data"][0]["content"][0]["text"] == "two"


async def test_a_frontend_that_is_gone_has_failed_its_responses(
    frontend: httpx.AsyncClient, steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process is not there to renew its lease.
    monkeypatch.setattr(background, "RENEW_S", 1000.0)
    made = await create(frontend, background=True)
    database = SqlDatabase(f"sqlite:///{tmp_path}/responses.db")
    row = await database.get(RowKey("", made["id"]), 0)
    assert row is not None
    await database.renew(row.owner, 0, 1)
    await database.close()
    found = await get(frontend, made["id"])
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert "has ended" in found["error"]["message"]
    assert await get(frontend, made["id"]) == found


async def begun_then_shut_down(pool: FakePool, place: str, **changes: Any) -> Any:
    """A response that was queued when its frontend was told to end; the frontend has ended."""
    async with (
        serving(pool, response_store=place, **changes) as (url, _),
        httpx.AsyncClient(base_url=url) as client,
    ):
        return await create(client, background=True)


async def test_a_shutdown_gives_it_time_and_ends_it(pool: FakePool, steps: Steps, tmp_path: Path) -> None:
    place = str(tmp_path / "responses.db")
    made = await begun_then_shut_down(pool, place, shutdown_timeout_s=0.05)
    async with serving(pool, response_store=place) as (url, _), httpx.AsyncClient(base_url=url) as client:
        found = await get(client, made["id"])
        assert (found["status"], found["error"]["message"]) == (
            "failed",
            "This server is shutting down; try again shortly.",
        )


async def test_a_shutdown_waits_for_it(pool: FakePool, steps: Steps, tmp_path: Path) -> None:
    place = str(tmp_path / "responses.db")
    asyncio.get_running_loop().call_later(0.5, steps.go_on)
    made = await begun_then_shut_down(pool, place)
    async with serving(pool, response_store=place) as (url, _), httpx.AsyncClient(base_url=url) as client:
        assert (await get(client, made["id"]))["status"] == "completed"


async def test_a_response_that_becomes_too_large_fails_without_its_output(
    make_frontend: FrontendFactory, pool: FakePool
) -> None:
    client = await make_frontend(response_store_bytes=2**20)
    pool.max_model_len = 2**20

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "x" * 2**18, [1], finish_reason="stop")

    pool.script = script
    # The input alone leaves no room for an error.
    made = await create(client, background=True, input="x" * (2**18 - 2000))
    found = await ended(client, made["id"])
    assert (found["status"], found["output"]) == ("failed", [])
    assert "--response-store-bytes" in found["error"]["message"]


async def test_what_the_store_has_of_a_refused_response_is_deleted(
    frontend: httpx.AsyncClient, pool: FakePool, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqlDatabase.add

    async def add(self: SqlDatabase, row: Row) -> bool:
        await real(self, row)
        # Written, and the answer is lost.
        raise StoreUnavailableError("broken")

    monkeypatch.setattr(SqlDatabase, "add", add)
    status, _ = await error(frontend, "POST", "", json={"input": "x", "background": True, "request_id": "a"})
    assert status == 503
    while (await error(frontend, "GET", "/resp_a"))[0] != 404:
        await asyncio.sleep(0.01)
    assert pool.seen == []


async def test_the_end_is_kept_however_long_the_store_fails(
    frontend: httpx.AsyncClient, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await create(frontend, background=True)
    tries: list[Row] = []
    real = SqlDatabase.replace

    async def replace(self: SqlDatabase, row: Row, owner: str) -> bool:
        tries.append(row)
        if len(tries) < 4:
            raise StoreUnavailableError("broken")
        return await real(self, row, owner)

    monkeypatch.setattr(SqlDatabase, "replace", replace)
    monkeypatch.setattr(store_module, "FAILING_S", 0.0)
    steps.go_on()
    assert (await ended(frontend, made["id"]))["status"] == "completed"
    assert len(tries) >= 4
