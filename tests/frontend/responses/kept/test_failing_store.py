"""A store that fails: what is answered all the same, and what is not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from splitserve.frontend.response_store import store as store_module
from splitserve.frontend.response_store.errors import StoreUnavailableError
from splitserve.frontend.response_store.rows import Row
from splitserve.frontend.response_store.sql import SqlDatabase
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.responses.kept.asking import PATH, create, error
from tests.frontend.responses.kept.conftest import FrontendFactory
from tests.frontend.responses.recorded import events


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> Any:
        raise StoreUnavailableError("a secret place")

    for name in ("put", "add", "get", "delete", "renew"):
        monkeypatch.setattr(SqlDatabase, name, fail)
    # Each request tries.
    monkeypatch.setattr(store_module, "FAILING_S", 0.0)


@pytest.mark.usefixtures("fails")
async def test_what_may_be_kept_is_answered_and_says_that_it_is_not(
    frontend: httpx.AsyncClient,
) -> None:
    made = await create(frontend)
    assert (made["store"], made["status"]) == (False, "completed")
    response = await frontend.post(PATH, json={"input": "x", "stream": True})
    last = events(response.text)[-1]
    assert (last["type"], last["response"]["store"]) == ("response.completed", False)


@pytest.mark.usefixtures("fails")
async def test_what_has_to_be_kept_fails(frontend: httpx.AsyncClient) -> None:
    for body in ({"store": True}, {"background": True}):
        response = await frontend.post(PATH, json={"input": "x"} | body)
        found = response.json()["error"]
        assert (response.status_code, found["code"]) == (503, "response_store_unavailable")
        assert "secret" not in found["message"]
        assert int(response.headers["retry-after"]) >= 1
    response = await frontend.post(PATH, json={"input": "x", "store": True, "stream": True})
    last = events(response.text)[-1]
    assert last["type"] == "response.failed"
    assert "response store" in last["response"]["error"]["message"]


@pytest.mark.usefixtures("fails")
async def test_what_was_kept_cannot_be_told(frontend: httpx.AsyncClient) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        status, found = await error(frontend, method, f"/resp_a{path}")
        assert (status, found["code"]) == (503, "response_store_unavailable")
    status, found = await error(
        frontend, "POST", "", json={"input": "x", "previous_response_id": "resp_a", "store": False}
    )
    assert (status, found["code"]) == (503, "response_store_unavailable")


async def test_after_a_failure_nothing_is_generated_in_vain(
    frontend: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Row] = []

    async def fail(self: SqlDatabase, row: Row) -> None:
        tries.append(row)
        raise StoreUnavailableError("broken")

    monkeypatch.setattr(SqlDatabase, "put", fail)
    monkeypatch.setattr(store_module, "FAILING_S", 1000.0)
    await error(frontend, "POST", "", json={"input": "x", "store": True})
    status, _ = await error(frontend, "POST", "", json={"input": "x", "store": True})
    assert (status, len(tries), len(pool.seen)) == (503, 1, 1)
    # The store is not asked either.
    assert (await create(frontend))["store"] is False
    assert (len(tries), len(pool.seen)) == (1, 2)


async def test_a_response_that_is_too_large_is_not_kept(
    make_frontend: FrontendFactory, pool: FakePool
) -> None:
    client = await make_frontend(response_store_bytes=2**20)
    pool.max_model_len = 2**20
    large = "x" * 2**18
    assert (await create(client, input=large))["store"] is False
    response = await client.post(PATH, json={"input": large, "stream": True})
    assert response_of_last(response.text)["store"] is False
    status, found = await error(client, "POST", "", json={"input": large, "store": True})
    assert (status, found["param"], found["code"]) == (400, "store", "response_too_large")
    assert "--response-store-bytes" in found["message"]
    assert (await create(client))["store"] is True


def response_of_last(text: str) -> Any:
    return events(text)[-1]["response"]


@pytest.mark.usefixtures("fails")
async def test_errors_of_the_store_are_counted(frontend: httpx.AsyncClient) -> None:
    name = 'splitserve:frontend_response_store_errors_total{frontend="frontend-0"}'
    assert f"{name} 0.0" in (await frontend.get("/metrics")).text
    await create(frontend)
    assert f"{name} 1.0" in (await frontend.get("/metrics")).text
