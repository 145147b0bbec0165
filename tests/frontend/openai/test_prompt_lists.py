"""Lists of prompts are one answer: sent as one request, and given up as one when any of them fails."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import pytest

from splitserve.engine_core.ipc.messages import Abort, AddRequest, Finished, FinishReason, Rejected
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.engines.fake_engine import DEADLINE_S, FakeEngine
from tests.frontend.engines.messages import MODEL, end, outputs
from tests.frontend.http.app_fixtures import serving

BODY = {"model": "m", "prompt": ["a", "b", "c"], "n": 2, "max_tokens": 4, "seed": 1}


class Rig(NamedTuple):
    """A frontend over scripted engines, and a client of it."""

    client: httpx.AsyncClient
    engines: list[FakeEngine]

    def ask(self, **fields: object) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.client.post("/v1/completions", json=BODY | fields))


@contextlib.asynccontextmanager
async def rig_of(tmp_path: Path, num_engines: int) -> AsyncGenerator[Rig, None]:
    model = msgspec.structs.replace(MODEL, path=str(write_checkpoint(tmp_path)))
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ss-"))
        addresses = [f"ipc://{Path(directory)}/{i}.sock" for i in range(num_engines)]
        engines = [await stack.enter_async_context(FakeEngine(address, model)) for address in addresses]
        pool = EnginePool(addresses, "list-test")
        url, _ = await stack.enter_async_context(serving(pool))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=DEADLINE_S))
        assert (await client.get("/live")).status_code == 200
        async with asyncio.timeout(DEADLINE_S):
            while [status.state for status in pool.status()] != ["ready"] * num_engines:
                await asyncio.sleep(0.001)
            await pool.wait_ready(DEADLINE_S)
        yield Rig(client, engines)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig, None]:
    async with rig_of(tmp_path, 1) as rig:
        yield rig


def handles(adds: list[AddRequest]) -> list[int]:
    return [add.handle for add in adds]


async def aborted(engine: FakeEngine, count: int) -> list[int]:
    """The handles of so many aborted sequences, which may be told in several messages."""
    found: list[int] = []
    while len(found) < count:
        found += (await engine.receive(Abort)).handles
    return sorted(found)


async def test_parameters_are_checked_once_for_all_prompts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[SamplingParams] = []
    check = SamplingParams.validate

    def counted(self: SamplingParams, *args: int) -> None:
        checked.append(self)
        check(self, *args)

    monkeypatch.setattr(SamplingParams, "validate", counted)
    task = rig.ask()
    await rig.engines[0].receive(AddRequest)
    assert len(checked) == 1
    task.cancel()


async def test_all_sequences_of_a_list_are_one_request(rig: Rig) -> None:
    (engine,) = rig.engines
    answer = rig.ask()
    adds = await engine.receive_adds(6)
    assert [add.more for add in adds] == [True] * 5 + [False]
    assert len({add.handle for add in adds}) == 6
    await engine.send(outputs([], [end(handle) for handle in handles(adds)]))
    assert (await answer).status_code == 200


async def test_each_engine_gets_its_part_as_one_request(tmp_path: Path) -> None:
    async with rig_of(tmp_path, 2) as rig:
        answer = rig.ask()
        for engine, count in zip(rig.engines, (4, 2), strict=True):
            adds = await engine.receive_adds(count)
            assert [add.more for add in adds] == [True] * (count - 1) + [False]
            await engine.send(outputs([], [end(handle) for handle in handles(adds)]))
        assert (await answer).status_code == 200


async def test_a_sequence_that_fails_ends_all_others_and_is_named(rig: Rig) -> None:
    (engine,) = rig.engines
    answer = rig.ask()
    adds = await engine.receive_adds(6)
    failure = Finished(adds[2].handle, FinishReason.ERROR, error_code="no_token_left", error_status=400)
    await engine.send(outputs([], [failure]))
    others = sorted(set(handles(adds)) - {adds[2].handle})
    assert await aborted(engine, 5) == others
    response = await answer
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt[1]")


async def test_a_queue_timeout_of_the_list_names_no_prompt(rig: Rig) -> None:
    (engine,) = rig.engines
    answer = rig.ask(queue_timeout=5)
    adds = await engine.receive_adds(6)
    late = [
        Finished(handle, FinishReason.ERROR, error_code="queue_timeout", error_status=503)
        for handle in handles(adds)
    ]
    await engine.send(outputs([], late))
    response = await answer
    assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_timeout")
    assert response.json()["error"]["param"] is None


async def test_a_request_that_made_room_for_another_is_429_with_its_time(rig: Rig) -> None:
    (engine,) = rig.engines
    answer = rig.ask(prompt="a", n=1)
    (add,) = await engine.receive_adds(1)
    gone = Finished(
        add.handle,
        FinishReason.ERROR,
        error_code="overloaded",
        error_message="make room",
        error_status=429,
        retry_after_s=7.0,
    )
    await engine.send(outputs([], [gone]))
    response = await answer
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert response.json()["error"] == {
        "message": "make room",
        "type": "rate_limit_error",
        "param": None,
        "code": "overloaded",
    }


async def test_a_list_of_which_one_part_is_refused_ends_on_the_other_engine(tmp_path: Path) -> None:
    async with rig_of(tmp_path, 2) as rig:
        first, second = rig.engines
        answer = rig.ask()
        adds = await first.receive_adds(4)
        for refused in await second.receive_adds(2):
            await second.send(Rejected(refused.handle, 429, "overloaded", "full", retry_after_s=3.0))
        assert await aborted(first, 4) == sorted(handles(adds))
        assert (await answer).status_code == 429
