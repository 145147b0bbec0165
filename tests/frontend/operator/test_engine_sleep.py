"""Sleep, waking up and the prefix cache, for those with an admin key alone."""

from __future__ import annotations

import httpx
import pytest

from splitserve.frontend.http.api_keys import hash_key
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool

ADMIN = {"authorization": "Bearer an-admin-key"}
USER = {"authorization": "Bearer a-users-key"}
ROUTES = [("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping"), ("POST", "/reset_prefix_cache")]


@pytest.fixture
def client(make_client: ClientFactory) -> httpx.AsyncClient:
    return make_client(
        admin_key_hashes=(hash_key("an-admin-key"),), api_key_hashes=(hash_key("a-users-key"),)
    )


async def test_an_engine_sleeps_until_it_is_woken_up(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def is_sleeping() -> bool:
        found: bool = (await client.get("/is_sleeping", headers=ADMIN)).json()["is_sleeping"]
        return found

    assert not await is_sleeping()
    assert (await client.post("/sleep?level=2", headers=ADMIN)).json() == {"is_sleeping": True}
    assert await is_sleeping()
    health = await client.get("/health", headers=USER)
    assert (health.status_code, health.json()["status"]) == (503, "asleep")
    engine = health.json()["engines"][0]
    assert (engine["state"], engine["loading_stage"], engine["stalled"]) == ("asleep", None, None)
    assert 'state="asleep"} 1.0' in (await client.get("/metrics", headers=USER)).text
    woken = await client.post("/wake_up?tags=weights&tags=kv_cache", headers=ADMIN)
    assert woken.json() == {"is_sleeping": False}
    assert not await is_sleeping()
    assert (await client.get("/health", headers=USER)).json()["status"] == "ok"
    # Lightly, if nothing is said.
    for query in ("", "?level=1"):
        await client.post(f"/sleep{query}", headers=ADMIN)
    assert pool.sleep_levels == [2, 0, 1, 1]


async def test_prefixes_are_forgotten(client: httpx.AsyncClient) -> None:
    assert (await client.post("/reset_prefix_cache", headers=ADMIN)).json() == {"num_blocks": 25}


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/sleep?level=0", "level"),
        ("/sleep?level=3", "level"),
        ("/sleep?level=deep", "level"),
        ("/wake_up?tags=weights", "tags"),
    ],
)
async def test_what_an_engine_cannot_do_is_named(client: httpx.AsyncClient, path: str, param: str) -> None:
    answer = await client.post(path, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_no_other_key_opens_it(
    client: httpx.AsyncClient, make_client: ClientFactory, method: str, path: str
) -> None:
    for headers in ({}, USER):
        assert (await client.request(method, path, headers=headers)).status_code == 401
    # Without admin keys there is no such route.
    assert (await make_client().request(method, path)).status_code == 404
