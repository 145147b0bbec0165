"""GET /debug/engines: what the engines show, to whom, and what is shown of one that does not answer."""

from __future__ import annotations

import base64

import httpx
import msgspec

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import EngineStats, QueueStats
from splitserve.engine_core.ipc.wire import BlockMap, EngineView, StepColumns, TenantShare
from splitserve.frontend.http.api_keys import hash_key
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool

VIEW = EngineView(
    BlockMap(bytes([2, 3, 1, 0]), num_idle_cached=1),
    StepColumns(41, *(pack_int32([value, value + 1]) for value in (10, 20, 30, 40, 50, 60))),
    [TenantShare("a", 3, 1), TenantShare("", 2, 0, 5)],
    8,
)


async def test_an_engine_is_shown_with_all_its_parts(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.engine_view = VIEW
    pool.stats_now = EngineStats(
        num_running=5, num_waiting=1, num_blocks=4, num_free_blocks=2, block_size=16, num_steps=9
    )
    pool.queue_now = QueueStats(waiting={"rows": 1})
    (engine,) = (await client.get("/debug/engines")).json()["engines"]
    assert (engine["engine"], engine["state"], engine["models"]) == (
        "engine-0",
        "ready",
        ["org/demo", "alias"],
    )
    assert engine["rows"] == {"running": 5, "waiting": 1, "waiting_for": {"rows": 1}, "max_running": 8}
    assert engine["blocks"] == {
        "in_use": 2,
        "cached": 1,
        "free": 1,
        "total": 4,
        "block_size": 16,
        "host_used": 0,
        "host_total": 0,
        "map": base64.b64encode(bytes([2, 3, 1, 0])).decode(),
        "blocks_per_cell": 1,
    }
    assert engine["steps"] == {
        "first_step": 41,
        "ago_us": [10, 11],
        "time_us": [20, 21],
        "rows": [30, 31],
        "prefill_tokens": [40, 41],
        "decode_tokens": [50, 51],
        "preemptions": [60, 61],
    }
    assert engine["tenants"][1] == {"tenant": "", "running": 2, "waiting": 0, "others": 5}
    assert engine["totals"]["steps"] == 9


async def test_an_engine_that_is_not_ready_is_shown_by_its_state(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.state = "loading"
    response = await client.get("/debug/engines")
    assert response.status_code == 200
    (engine,) = response.json()["engines"]
    assert (engine["state"], engine["loading_stage"], engine["rows"]) == ("loading", "weights", None)


async def test_torn_columns_are_no_view(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.engine_view = msgspec.structs.replace(
        VIEW, steps=msgspec.structs.replace(VIEW.steps, time_us=b"123")
    )
    (engine,) = (await client.get("/debug/engines")).json()["engines"]
    assert (engine["state"], engine["steps"], engine["blocks"]) == ("ready", None, None)


async def test_with_keys_a_key_is_needed_and_names_the_tenant(
    make_client: ClientFactory, pool: FakePool
) -> None:
    client = make_client(api_key_hashes=(hash_key("sk-one-long-key"),))
    assert (await client.get("/debug/engines")).status_code == 401
    response = await client.get("/debug/engines", headers={"authorization": "Bearer sk-one-long-key"})
    assert response.status_code == 200
    assert pool.asked == [([], hash_key("sk-one-long-key")[:16])]
