"""Requests that arrive while the engine of their model is away wait for it, for a bounded time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from splitserve.engine_core.errors import (
    EngineAsleepError,
    EngineUnavailableError,
    InvalidRequestError,
    SplitServeError,
)
from splitserve.engine_core.ipc.messages import AddRequest, Draining, HandOver, Ready, Recovering
from splitserve.engine_core.ipc.wire import ASLEEP, ModelInfo
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.engines.conftest import MakePool, state_of, until
from tests.frontend.engines.fake_engine import DEADLINE_S, FakeEngine
from tests.frontend.engines.messages import end, outputs

# Longer than the test: nothing may wait for its end.
LONG_S = 600.0


async def ask(pool: EnginePool, model: str = "m") -> list[OutputDelta]:
    """What a handler does: find the model, then send the request."""
    async with asyncio.timeout(DEADLINE_S):
        await pool.settle(model)
        pool.find_model(model)
        request = GenerationRequest("r", [40, 41], SamplingParams(max_tokens=1))
        return [delta async for delta in pool.generate(model, request)]


async def answer(engine: FakeEngine, epoch: int = 1) -> None:
    """Answer the next request with one token."""
    handle = (await engine.receive(AddRequest)).handle
    await engine.send(outputs([(handle, 50, 0)], [end(handle)], epoch=epoch))


async def pool_of_a_lost_engine(
    make_pool: MakePool, address: str, model: ModelInfo, failover_wait_s: float = LONG_S
) -> EnginePool:
    """A pool whose only engine has served, and is gone."""
    pool = await make_pool(address, failover_wait_s=failover_wait_s)
    async with FakeEngine(address, model, epoch=1):
        await pool.wait_ready(DEADLINE_S)
    await until(lambda: state_of(pool) == "lost")
    return pool


async def test_they_wait_for_the_successor_of_a_lost_engine(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await pool_of_a_lost_engine(make_pool, addresses[0], model)
    task = asyncio.create_task(ask(pool))
    await asyncio.sleep(0)
    async with FakeEngine(addresses[0], model, epoch=2) as engine:
        await answer(engine, 2)
        assert [delta.token_ids for delta in await task] == [[50]]


@pytest.mark.parametrize("failover_wait_s", [0.0, 0.05])
async def test_they_are_refused_when_it_does_not_come(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, failover_wait_s: float
) -> None:
    pool = await pool_of_a_lost_engine(make_pool, addresses[0], model, failover_wait_s)
    with pytest.raises(EngineUnavailableError, match="is lost"):
        await ask(pool)


async def test_they_wait_while_the_engine_recovers_and_what_runs_there_stays(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0], failover_wait_s=LONG_S)
        await pool.wait_ready(DEADLINE_S)
        running = asyncio.create_task(ask(pool))
        handle = (await engine.receive(AddRequest)).handle
        await engine.send(Recovering("starting the worker", 0.5))
        await until(lambda: state_of(pool) == "recovering")
        status = pool.status()[0]
        assert (status.stage, status.fraction, status.num_open) == ("starting the worker", 0.5, 1)
        task = asyncio.create_task(ask(pool))
        await asyncio.sleep(0)
        assert isinstance(engine.hello_answer, Ready)
        await engine.send(msgspec.structs.replace(engine.hello_answer, lease_renewed=True))
        await answer(engine)
        assert [delta.token_ids for delta in await task] == [[50]]
        await engine.send(outputs([(handle, 51, 0)], [end(handle)]))
        assert [delta.token_ids for delta in await running] == [[51]]


async def test_they_are_refused_at_once_while_the_engine_sleeps(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0], failover_wait_s=LONG_S)
        await pool.wait_ready(DEADLINE_S)
        await engine.send(Recovering(ASLEEP, 0.0))
        await until(lambda: state_of(pool) == "asleep")
        with pytest.raises(EngineAsleepError, match="is asleep"):
            await ask(pool)
        # Woken up, it starts its workers.
        await engine.send(Recovering("starting the worker", 0.0))
        await until(lambda: state_of(pool) == "recovering")


async def test_they_wait_after_a_hand_over_but_not_while_an_engine_drains(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(addresses[0], failover_wait_s=LONG_S)
    async with FakeEngine(addresses[0], model) as engine:
        await pool.wait_ready(DEADLINE_S)
        await engine.send(Draining(5.0))
        await until(lambda: state_of(pool) == "draining")
        with pytest.raises(EngineUnavailableError, match="draining"):
            await ask(pool)
        await engine.send(HandOver("restart"))
    await until(lambda: state_of(pool) == "lost")
    task = asyncio.create_task(ask(pool))
    await asyncio.sleep(0)
    async with FakeEngine(addresses[0], model, epoch=2) as engine:
        await answer(engine, 2)
        assert await task


async def test_a_name_that_no_engine_ever_had_is_refused_at_once(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(*addresses, failover_wait_s=LONG_S)
    async with FakeEngine(addresses[1], model):
        async with FakeEngine(addresses[0], model):
            await until(lambda: [status.state for status in pool.status()] == ["ready", "ready"])
        await until(lambda: state_of(pool) == "lost")
        with pytest.raises(InvalidRequestError, match="does not exist"):
            await ask(pool, "other")


async def test_a_name_whose_engine_has_been_away_for_long_is_known_all_the_same(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(*addresses, failover_wait_s=0.0)
    async with FakeEngine(addresses[1], model):
        first = FakeEngine(addresses[0], model)
        assert isinstance(first.hello_answer, Ready)
        first.hello_answer = msgspec.structs.replace(first.hello_answer, served_model_names=["first"])
        async with first:
            await until(lambda: [status.state for status in pool.status()] == ["ready", "ready"])
        await until(lambda: state_of(pool) == "lost")
        with pytest.raises(
            EngineUnavailableError, match=r"no engine of the model 'first' is ready: .* is lost"
        ):
            await ask(pool, "first")


async def test_a_displaced_request_ends_with_the_pool(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(addresses[0], failover_wait_s=LONG_S)
    async with FakeEngine(addresses[0], model) as engine:
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(ask(pool))
        await engine.receive(AddRequest)
    await until(lambda: pool.stats().num_displaced == 1)
    await pool.close()
    with pytest.raises(EngineUnavailableError, match="shutting down"):
        await task


async def test_what_waits_ends_with_the_pool(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await pool_of_a_lost_engine(make_pool, addresses[0], model)
    asked = asyncio.create_task(ask(pool))
    await asyncio.sleep(0)
    await pool.close()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(EngineUnavailableError):
            await asked


async def test_a_request_does_not_go_on_with_another_model_of_the_same_name(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(addresses[0], failover_wait_s=LONG_S)
    async with FakeEngine(addresses[0], model, epoch=1) as engine:
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(ask(pool))
        await engine.receive(AddRequest)
    await until(lambda: pool.stats().num_displaced == 1)
    other = msgspec.structs.replace(model, vocab_size=model.vocab_size + 1)
    async with FakeEngine(addresses[0], other, epoch=2) as engine:
        await pool.wait_ready(DEADLINE_S)
        new = asyncio.create_task(ask(pool))
        handle = (await engine.receive(AddRequest)).handle
        await engine.send(outputs([(handle, 50, 0)], [end(handle)], epoch=2))
        assert [delta.token_ids for delta in await new] == [[50]]
        assert not task.done()
        assert pool.stats().num_displaced == 1
    await pool.close()
    with pytest.raises(EngineUnavailableError, match="shutting down"):
        await task


@pytest.mark.parametrize(
    ("fields", "code", "status"),
    [({"timeout_s": 0.05}, "timeout", 504), ({"queue_timeout_s": 0.05}, "queue_timeout", 503)],
)
async def test_the_time_of_a_request_runs_while_no_engine_is_ready(
    addresses: list[str],
    model: ModelInfo,
    make_pool: MakePool,
    fields: dict[str, float],
    code: str,
    status: int,
) -> None:
    pool = await pool_of_a_lost_engine(make_pool, addresses[0], model)
    request = GenerationRequest("r", [40, 41], SamplingParams(max_tokens=1), **fields)  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(SplitServeError) as caught:
            await pool.open("m", [request], lambda: None)
    assert (caught.value.code, caught.value.status) == (code, status)


async def test_an_engine_gets_what_is_left_of_the_time_of_a_request_that_waited(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await pool_of_a_lost_engine(make_pool, addresses[0], model)
    request = GenerationRequest("r", [40, 41], SamplingParams(max_tokens=1), timeout_s=LONG_S)
    task = asyncio.create_task(pool.open("m", [request], lambda: None))
    await asyncio.sleep(0)
    async with FakeEngine(addresses[0], model, epoch=2) as engine:
        asked = await engine.receive(AddRequest)
        (generation,) = await task
        generation.close()
    assert 0 < asked.timeout_s < LONG_S


async def test_they_wait_if_the_engine_is_lost_while_their_bad_words_are_spelt(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, lost = asyncio.Event(), asyncio.Event()

    async def spell(sampling: SamplingParams, _: object) -> SamplingParams:
        begun.set()
        await lost.wait()
        return sampling

    monkeypatch.setattr("splitserve.frontend.engines.preparation.spell_bad_words", spell)
    pool = await make_pool(addresses[0], failover_wait_s=LONG_S)
    request = GenerationRequest("r", [40, 41], SamplingParams(max_tokens=1, bad_words=("no",)))
    async with FakeEngine(addresses[0], model, epoch=1):
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(pool.open("m", [request], lambda: None))
        await begun.wait()
    await until(lambda: state_of(pool) == "lost")
    lost.set()
    async with FakeEngine(addresses[0], model, epoch=2) as engine:
        assert await engine.receive(AddRequest)
        (generation,) = await task
        generation.close()


async def test_nobody_waits_longer_than_for_one_absence_however_often_the_engine_is_lost(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await pool_of_a_lost_engine(make_pool, addresses[0], model)
    readiness = pool._readiness
    readiness._failover_wait_s = 0.2
    loop = asyncio.get_running_loop()
    # As of an engine that is lost over and over.
    pool._replicas[0].gone_since_s = loop.time() + LONG_S
    async with asyncio.timeout(DEADLINE_S):
        assert await readiness.outlast_absence("m", lambda: False) >= 0.2


async def test_a_prompt_is_not_sent_to_another_model_of_the_same_name(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(addresses[0], failover_wait_s=LONG_S)
    async with FakeEngine(addresses[0], model, epoch=1):
        await pool.wait_ready(DEADLINE_S)
        before = pool.find_model("m").identity
    await until(lambda: state_of(pool) == "lost")
    other = msgspec.structs.replace(model, num_params=model.num_params + 1)
    async with FakeEngine(addresses[0], other, epoch=2):
        await pool.wait_ready(DEADLINE_S)
        request = GenerationRequest("r", [40, 41], SamplingParams(max_tokens=1), model=before)
        with pytest.raises(EngineUnavailableError, match="the model was replaced"):
            await pool.open("m", [request], lambda: None)
