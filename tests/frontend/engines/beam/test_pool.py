"""Beam searches of a pool on real engine-core processes that make tokens up."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import aclosing

import pytest

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.engines.conftest import MakePool
from tests.frontend.engines.test_simulated_engine import DEADLINE_S, collect, engine, request, until_stats

pytestmark = pytest.mark.system

SEARCH = SamplingParams(use_beam_search=True, n=3, max_tokens=40, ignore_eos=True, logprobs=0)


def outputs(deltas: list[OutputDelta]) -> list[list[int]]:
    assert [delta.finish_reason for delta in deltas] == ["length"] * 3
    return [delta.token_ids for delta in deltas]


async def test_a_search_is_one_request_of_the_pool(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model):
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        found = await collect(pool, request(SEARCH))
        assert len({tuple(token_ids) for token_ids in outputs(found)}) == 3
        assert [len(token_ids) for token_ids in outputs(found)] == [40, 40, 40]
        stats = pool.stats()
        assert (stats.requests_started, stats.requests_finished, stats.num_open) == (1, 1, 0)
        many = await asyncio.gather(*(collect(pool, request(SEARCH, name=f"r{i}")) for i in range(20)))
        assert [outputs(deltas) for deltas in many] == [outputs(found)] * 20


async def test_leaving_a_search_frees_the_engine(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model, "--simulated-step-ms", "200"):
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        searching = asyncio.create_task(collect(pool, request(SEARCH)))
        await until_stats(pool, lambda running, waiting: running == 3)
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)
        assert pool.stats().num_open == 0
        await until_stats(pool, lambda running, waiting: running + waiting == 0)
        assert pool.stats().requests_aborted == 1


async def leave_an_engine(
    pool: EnginePool, engines: list[subprocess.Popen[bytes]], sig: signal.Signals
) -> list[OutputDelta]:
    """Search, and send a signal to the engine that runs a step of it."""
    async with asyncio.timeout(DEADLINE_S):
        while [status.state for status in pool.status()] != ["ready", "ready"]:
            await asyncio.sleep(0.01)
        searching = asyncio.create_task(collect(pool, request(SEARCH)))
        while not (busy := [i for i, status in enumerate(pool.status()) if status.num_open == 3]):
            await asyncio.sleep(0.001)
        engines[busy[0]].send_signal(sig)
        return await searching


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
async def test_a_search_goes_on_where_an_engine_is_left(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, sig: signal.Signals
) -> None:
    slow = ("--simulated-step-ms", "10")
    async with engine(addresses[0], model, *slow) as first, engine(addresses[1], model, *slow) as second:
        pool = await make_pool(*addresses)
        await pool.wait_ready(DEADLINE_S)
        found = outputs(await leave_an_engine(pool, [first, second], sig))
        assert [status.state for status in pool.status()].count("ready") == 1
        assert found == outputs(await collect(pool, request(SEARCH)))


async def test_a_search_fails_with_the_only_engine(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model, "--simulated-step-ms", "200") as process:
        pool = await make_pool(addresses[0], failover_wait_s=0.0)
        await pool.wait_ready(DEADLINE_S)
        async with aclosing(pool.generate("", request(SEARCH))) as deltas:
            searching = asyncio.create_task(anext(deltas))
            await until_stats(pool, lambda running, waiting: running == 3)
            process.kill()
            with pytest.raises(EngineUnavailableError):
                await searching
        assert pool.stats().requests_failed == 1
