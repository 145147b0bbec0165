"""Another log level while the server runs, for those with an admin key alone."""

from __future__ import annotations

import logging

import httpx
import pytest

from splitserve.frontend.http.api_keys import hash_key
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool

PATH = "/debug/log_level"
ADMIN = {"authorization": "Bearer an-admin-key"}
HASHES = (hash_key("an-admin-key"),)
USER = {"authorization": "Bearer a-users-key"}


@pytest.fixture(autouse=True)
def level_before(caplog: pytest.LogCaptureFixture) -> None:
    """Put the level of the root logger back afterwards."""
    caplog.set_level(logging.INFO)


@pytest.fixture
def client(make_client: ClientFactory) -> httpx.AsyncClient:
    return make_client(admin_key_hashes=HASHES, api_key_hashes=(hash_key("a-users-key"),))


async def test_it_is_shown_and_changed_here_and_at_the_engines(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    shown = (await client.get(PATH, headers=ADMIN)).json()
    assert shown == {"level": "info", "engines": {}}
    changed = await client.post(PATH, headers=ADMIN, json={"level": "debug"})
    assert changed.json() == {"level": "debug", "engines": {"engine-0": True}}
    assert (pool.log_levels, logging.getLogger().level) == (["debug"], logging.DEBUG)


async def test_an_engine_that_does_not_answer_is_named(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.answers = False
    changed = await client.post(PATH, headers=ADMIN, json={"level": "error"})
    assert changed.json() == {"level": "error", "engines": {"engine-0": False}}


@pytest.mark.parametrize("headers", [{}, USER, {"x-api-key": "guessed"}], ids=["no", "user", "wrong"])
async def test_no_other_key_opens_it(
    client: httpx.AsyncClient, pool: FakePool, headers: dict[str, str]
) -> None:
    for method in ("GET", "POST"):
        response = await client.request(method, PATH, headers=headers, json={"level": "debug"})
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert pool.log_levels == []


async def test_an_admin_key_opens_nothing_else(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models", headers=ADMIN)).status_code == 401
    assert (await client.get("/v1/models", headers=USER)).status_code == 200


async def test_without_api_keys_it_needs_its_own_all_the_same(make_client: ClientFactory) -> None:
    client = make_client(admin_key_hashes=HASHES)
    assert (await client.get("/v1/models")).status_code == 200
    assert (await client.get(PATH)).status_code == 401
    assert (await client.get(PATH, headers=ADMIN)).status_code == 200
    document = (await client.get("/openapi.json")).json()
    assert "security" not in document
    assert document["paths"][PATH]["post"]["security"] == [{"key": []}, {"header": []}]
    assert document["components"]["securitySchemes"].keys() == {"key", "header"}


async def test_without_an_admin_key_there_is_none(make_client: ClientFactory) -> None:
    for keys in ({}, {"api_key_hashes": (hash_key("a-users-key"),)}):
        client = make_client(**keys)
        assert (await client.post(PATH, headers=USER, json={"level": "debug"})).status_code == 404
        assert PATH not in (await client.get("/openapi.json", headers=USER)).json()["paths"]


async def test_a_level_that_does_not_exist_is_refused(client: httpx.AsyncClient, pool: FakePool) -> None:
    response = await client.post(PATH, headers=ADMIN, json={"level": "verbose"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "level")
    assert pool.log_levels == []
