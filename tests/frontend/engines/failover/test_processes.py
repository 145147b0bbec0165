"""Requests whose real engine-core processes are killed under them: nothing of the output changes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.engines.conftest import MakePool
from tests.frontend.engines.test_simulated_engine import DEADLINE_S, collect, engine

pytestmark = pytest.mark.system

SLOW = ("--simulated-step-ms", "10")
NUM_TOKENS = 150
PLAIN = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=3)
REQUESTS = {
    "plain": PLAIN,
    "n": replace(PLAIN, n=3),
    "logprobs": replace(PLAIN, logprobs=3, prompt_logprobs=2),
    "penalties": replace(PLAIN, frequency_penalty=0.5, presence_penalty=0.5, repetition_penalty=1.1),
    "min_tokens": replace(PLAIN, ignore_eos=False, min_tokens=NUM_TOKENS - 10),
    "search": SamplingParams(use_beam_search=True, n=3, max_tokens=40, ignore_eos=True, logprobs=0),
}


def requests(stop: str) -> list[GenerationRequest]:
    kinds = REQUESTS | {"stop": replace(PLAIN, stop=(stop,))}
    return [
        GenerationRequest(f"{name}-{i}", [40 + i, 41, 42], sampling)
        for i in range(2)
        for name, sampling in kinds.items()
    ]


def outcome(deltas: list[OutputDelta]) -> dict[int, tuple[object, ...]]:
    """All that a client may see of each completion, however it came in parts."""
    found: dict[int, tuple[object, ...]] = {}
    for index in {delta.index for delta in deltas}:
        mine = [delta for delta in deltas if delta.index == index]
        found[index] = (
            "".join(delta.text for delta in mine),
            [token_id for delta in mine for token_id in delta.token_ids],
            [entry for delta in mine for entry in delta.logprobs],
            [list(delta.prompt_logprobs) for delta in mine if delta.prompt_logprobs is not None],
            mine[-1].finish_reason,
            mine[-1].stop_reason,
        )
    return found


async def until_ready(pool: EnginePool, num: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while [status.state for status in pool.status()].count("ready") < num:
            await asyncio.sleep(0.01)


async def undisturbed(pool: EnginePool) -> tuple[str, list[dict[int, tuple[object, ...]]]]:
    """Choose a stop string that comes late in the output, and run everything once."""
    text = "".join(delta.text for delta in await collect(pool, GenerationRequest("r", [40, 41, 42], PLAIN)))
    stop = next(text[i : i + 3] for i in range(len(text) // 2, len(text)) if text.find(text[i : i + 3]) == i)
    return stop, [outcome(deltas) for deltas in await run_all(pool, requests(stop))]


async def run_all(pool: EnginePool, wanted: list[GenerationRequest]) -> list[list[OutputDelta]]:
    return await asyncio.gather(*(collect(pool, each) for each in wanted))


async def disturbed(
    pool: EnginePool, stop: str, disturb: Callable[[], None]
) -> list[dict[int, tuple[object, ...]]]:
    """Run everything, and do something once tokens have come for each."""
    wanted = requests(stop)
    begun: set[str] = set()

    async def watch(each: GenerationRequest) -> list[OutputDelta]:
        deltas = []
        async for delta in pool.generate("", each):
            begun.add(each.request_id)
            deltas.append(delta)
        return deltas

    async with asyncio.timeout(DEADLINE_S):
        tasks = [asyncio.create_task(watch(each)) for each in wanted]
        # A search tells nothing before its end.
        while len(begun) < sum(not each.sampling.use_beam_search for each in wanted):
            assert not any(task.done() and task.exception() for task in tasks)
            await asyncio.sleep(0.001)
        disturb()
        return [outcome(deltas) for deltas in await asyncio.gather(*tasks)]


async def test_streams_of_a_killed_engine_go_on_at_another_with_the_same_tokens(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model, *SLOW) as first, engine(addresses[1], model, *SLOW):
        pool = await make_pool(*addresses)
        await until_ready(pool, 2)
        stop, expected = await undisturbed(pool)
        assert await disturbed(pool, stop, first.kill) == expected
        stats = pool.stats()
        assert stats.requests_failed == 0
        assert sum(stats.failover.migrations.values()) > 5


async def test_streams_of_the_only_engine_wait_for_its_successor(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    successors: list[subprocess.Popen[bytes]] = []
    async with engine(addresses[0], model, *SLOW) as first:
        pool = await make_pool(addresses[0])
        await until_ready(pool, 1)
        stop, expected = await undisturbed(pool)
        successor = engine(addresses[0], model, *SLOW)

        def restart() -> None:
            first.kill()
            first.wait()
            starting.append(asyncio.ensure_future(successor.__aenter__()))

        starting: list[asyncio.Future[subprocess.Popen[bytes]]] = []
        try:
            assert await disturbed(pool, stop, restart) == expected
        finally:
            for each in starting:
                successors.append(await each)
                await successor.__aexit__(None, None, None)
        assert pool.stats().requests_failed == 0


async def test_streams_of_a_stopped_engine_go_on_and_what_it_says_later_is_not_heard(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model, *SLOW) as first, engine(addresses[1], model, *SLOW):
        pool = await make_pool(*addresses)
        await until_ready(pool, 2)
        stop, expected = await undisturbed(pool)
        assert await disturbed(pool, stop, lambda: first.send_signal(signal.SIGSTOP)) == expected
        first.send_signal(signal.SIGCONT)
        await until_ready(pool, 2)
        assert [outcome(deltas) for deltas in await run_all(pool, requests(stop))] == expected
