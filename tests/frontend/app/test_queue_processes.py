"""Bounds, queue timeouts, explanations and fair shares through HTTP and real engine-core processes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.http.api_keys import hash_key
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.http.app_fixtures import serving

pytestmark = pytest.mark.system

DEADLINE_S = 60.0
KEYS = {"light": "sk-light-key", "heavy": "sk-heavy-key", "other": "sk-other-key"}
TENANTS = {name: hash_key(key)[:16] for name, key in KEYS.items()}
LONG = {"prompt": "hello", "max_tokens": 450, "ignore_eos": True, "seed": 1}


class Service(NamedTuple):
    """A frontend over one engine, and a client of it."""

    client: httpx.AsyncClient
    log: Path

    async def complete(self, **body: object) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "hello", "seed": 1} | body)

    async def open_requests(self, count: int, headers: dict[str, str] | None = None) -> list[dict]:
        """The open requests, once there are so many."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = (await self.client.get("/debug/requests", headers=headers)).json()["requests"]
                if len(found) >= count:
                    return found


@contextlib.asynccontextmanager
async def service(tmp_path: Path, *flags: str, **config: object) -> AsyncGenerator[Service, None]:
    checkpoint, log = write_checkpoint(tmp_path / "model"), tmp_path / "log"
    with tempfile.TemporaryDirectory(prefix="ss-") as directory, log.open("wb") as stderr:
        address = f"ipc://{Path(directory)}/engine.sock"
        words = ["--model", str(checkpoint), "--listen", address, "--executor", "simulated", *flags]
        process = subprocess.Popen(
            [sys.executable, "-m", "splitserve.engine_core.cli", *words], stderr=stderr
        )
        try:
            pool = EnginePool([address], "queue-test")
            async with (
                serving(pool, **config) as (url, _),
                httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client,
            ):
                assert (await client.get("/live")).status_code == 200
                await pool.wait_ready(DEADLINE_S)
                yield Service(client, log)
        finally:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def occupied(served: Service, headers: dict[str, str] | None = None) -> AsyncGenerator[None, None]:
    """While a request that would run for long holds the engine's only row."""
    body = LONG | {"stream": True}
    async with served.client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        assert response.status_code == 200
        yield


@pytest.fixture
async def small(tmp_path: Path) -> AsyncGenerator[Service, None]:
    async with service(tmp_path, "--max-num-seqs=4", "--max-num-waiting=2") as served:
        yield served


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncGenerator[Service, None]:
    """One row, a queue of two requests and forty tokens."""
    flags = ("--max-num-seqs=1", "--max-num-waiting=2", "--max-waiting-tokens=40", "--log-wait=0.05")
    async with service(tmp_path, *flags, "--simulated-step-ms=50") as served:
        yield served


async def test_a_full_queue_is_429_with_the_time_it_takes(narrow: Service) -> None:
    async with occupied(narrow):
        waiting = [asyncio.create_task(narrow.complete(max_tokens=1, request_id=f"w{i}")) for i in range(2)]
        infos = await narrow.open_requests(3)
        assert [(i["state"], i["waits_for"], i["position"]) for i in infos] == [
            ("running", None, None),
            ("waiting", "rows", 0),
            ("waiting", "rows", 1),
        ]
        one = (await narrow.client.get("/debug/requests/w1")).json()["requests"]
        assert [info["request_id"] for info in one] == ["cmpl-w1"]
        full = await narrow.complete(max_tokens=1)
    assert full.status_code == 429
    assert int(full.headers["retry-after"]) >= 1
    message = full.json()["error"]["message"]
    assert "queue full: 2 requests waiting (--max-num-waiting)" in message
    assert f"wait is {full.headers['retry-after']} s" in message
    assert [response.status_code for response in await asyncio.gather(*waiting)] == [200, 200]


async def test_as_many_tokens_may_wait_as_the_flag_says(narrow: Service) -> None:
    async with occupied(narrow):
        alone = asyncio.create_task(narrow.complete(prompt=[7] * 60, max_tokens=1))
        await narrow.open_requests(2)
        full = await narrow.complete(max_tokens=1)
    assert full.status_code == 429
    assert "queue full: 60 prompt tokens waiting" in full.json()["error"]["message"]
    assert "--max-waiting-tokens" in full.json()["error"]["message"]
    assert (await alone).status_code == 200


@pytest.mark.parametrize("fields", [{"n": 3}, {"prompt": [[7] * 15, [8] * 15, [9] * 15]}], ids=str)
async def test_sequences_of_one_request_do_not_refuse_each_other(narrow: Service, fields: dict) -> None:
    """45 tokens, where 40 may wait: one request alone may exceed the bound."""
    answer = await narrow.complete(**{"prompt": [7] * 15, "max_tokens": 1} | fields)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 3


async def test_sequences_of_one_request_are_refused_together(narrow: Service) -> None:
    async with occupied(narrow):
        alone = asyncio.create_task(narrow.complete(prompt=[7] * 10, max_tokens=1))
        await narrow.open_requests(2)
        full = await narrow.complete(prompt=[[8] * 16, [9] * 16], max_tokens=1)
        assert full.status_code == 429
        assert len(await narrow.open_requests(2)) == 2
    assert (await alone).status_code == 200


async def test_a_list_that_waits_too_long_ends_as_a_whole(narrow: Service) -> None:
    async with occupied(narrow):
        late = await narrow.complete(prompt=[[8], [9]], max_tokens=1, queue_timeout=0.3)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
        assert len(await narrow.open_requests(1)) == 1


async def test_a_greedy_tenant_makes_room_for_another(tmp_path: Path) -> None:
    """Two of one tenant fill the queue; the last of them ends with 429 when another tenant asks."""
    flags = ("--max-num-seqs=1", "--max-num-waiting=2", "--simulated-step-ms=20")
    keys = {"api_key_hashes": tuple(hash_key(key) for key in KEYS.values())}
    headers = {name: {"authorization": f"Bearer {key}"} for name, key in KEYS.items()}
    async with service(tmp_path, *flags, **keys) as served:

        async def ask(name: str) -> httpx.Response:
            body = {"prompt": [9], "max_tokens": 1}
            return await served.client.post("/v1/completions", json=body, headers=headers[name])

        async with occupied(served, headers["other"]):
            first = asyncio.create_task(ask("heavy"))
            await served.open_requests(1, headers["heavy"])
            last = asyncio.create_task(ask("heavy"))
            await served.open_requests(2, headers["heavy"])
            modest = asyncio.create_task(ask("light"))
            gone = await last
            assert gone.status_code == 429
            assert int(gone.headers["retry-after"]) >= 1
            assert "--max-num-waiting" in gone.json()["error"]["message"]
        assert [(await task).status_code for task in (first, modest)] == [200, 200]


async def test_time_in_the_queue_and_time_at_all_may_run_out(narrow: Service) -> None:
    async with occupied(narrow):
        waited = await narrow.complete(max_tokens=1, queue_timeout=0.3, request_id="w2")
    assert (waited.status_code, waited.json()["error"]["code"]) == (503, "queue_timeout")
    assert "retry-after" in waited.headers
    late = await narrow.complete(**LONG | {"timeout": 0.2})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    await narrow.client.get("/health")
    metrics = (await narrow.client.get("/metrics")).text
    for kind in ("queue_timeout", "timeout"):
        assert f'splitserve:requests_timed_out_total{{engine="engine-0",kind="{kind}"' in metrics
    assert "request waits request_id=cmpl-w2 waits_for=rows" in narrow.log.read_text()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 6}, None),
        ({"prompt": ["a", "b", "c"], "n": 2}, None),
        ({"use_beam_search": True, "best_of": 6}, None),
        ({"n": 7}, "n"),
        ({"prompt": ["a", "b", "c", "d"], "n": 2}, "n"),
        ({"prompt": ["a"] * 7}, "n"),
        ({"use_beam_search": True, "best_of": 7}, "best_of"),
    ],
    ids=str,
)
async def test_sequences_of_one_request_find_room_or_are_refused_for_good(
    small: Service, fields: dict, param: str | None
) -> None:
    """Four rows and a queue of two: an idle engine takes six at once, and never more."""
    answer = await small.complete(max_tokens=2, **fields)
    assert answer.status_code == (400 if param else 200), answer.text
    if param:
        error = answer.json()["error"]
        assert error["param"] == param
        assert "must be at most 6" in error["message"]
        assert "--max-num-waiting" in error["message"]


async def test_tenants_get_the_engine_by_weight(tmp_path: Path) -> None:
    """Sixteen equal requests of each wait for one row; of the first twelve to end nine are heavy."""
    flags = ("--max-num-seqs=1", "--scheduling-policy=fair", f"--tenant-weight={TENANTS['heavy']}=3")
    keys = {"api_key_hashes": tuple(hash_key(key) for key in KEYS.values())}
    headers = {name: {"authorization": f"Bearer {key}"} for name, key in KEYS.items()}
    async with service(tmp_path, *flags, "--simulated-step-ms=10", **keys) as served:
        order: list[str] = []

        async def run(name: str, number: int) -> None:
            body = {"prompt": [9 + number] * 8, "max_tokens": 4, "ignore_eos": True}
            response = await served.client.post("/v1/completions", json=body, headers=headers[name])
            assert response.status_code == 200
            order.append(name)

        async with occupied(served, headers["other"]):
            names = [name for _ in range(16) for name in ("light", "heavy")]
            runs = [asyncio.create_task(run(name, i)) for i, name in enumerate(names)]
            for name in ("light", "heavy"):
                await served.open_requests(16, headers[name])
        await asyncio.gather(*runs)
        assert 8 <= order[:12].count("heavy") <= 10
