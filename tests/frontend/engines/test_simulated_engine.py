"""The pool against real engine-core processes that make tokens up."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from splitserve.engine_core.errors import EngineUnavailableError, OverloadedError
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.engines.conftest import MakePool

pytestmark = pytest.mark.system

DEADLINE_S = 60.0
LONG = SamplingParams(max_tokens=500, ignore_eos=True)


@asynccontextmanager
async def engine(address: str, model: ModelInfo, *flags: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run an engine-core until the block ends."""
    command = [
        "--model",
        model.path,
        "--executor",
        "simulated",
        "--listen",
        address,
        "--log-level",
        "warning",
    ]
    process = subprocess.Popen([sys.executable, "-m", "splitserve.engine_core.cli", *command, *flags])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def request(sampling: SamplingParams, prompt: list[int] | None = None, name: str = "r") -> GenerationRequest:
    return GenerationRequest(name, prompt or [40, 41, 42], sampling)


async def collect(pool: EnginePool, wanted: GenerationRequest) -> list[OutputDelta]:
    async with asyncio.timeout(DEADLINE_S):
        return [delta async for delta in pool.generate("", wanted)]


async def until_stats(pool: EnginePool, condition: Callable[[int, int], bool]) -> None:
    """Ping until (running, waiting) of the only engine are as wanted."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            stats = (await pool.ping(DEADLINE_S))[0].stats
            if stats is not None and condition(stats.num_running, stats.num_waiting):
                return
            await asyncio.sleep(0.01)


async def test_tokens_text_and_logprobs_fit_together(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model):
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        tokenizer = pool.find_model("").assets.tokenizer
        sampling = SamplingParams(n=3, max_tokens=40, seed=5, logprobs=3, prompt_logprobs=1, ignore_eos=True)
        deltas = await collect(pool, request(sampling))
        texts = []
        for index in range(3):
            mine = [delta for delta in deltas if delta.index == index]
            token_ids = [token_id for delta in mine for token_id in delta.token_ids]
            texts.append("".join(delta.text for delta in mine))
            assert len(token_ids) == 40
            assert texts[-1] == tokenizer.decode(token_ids)
            assert [entry.token_id for delta in mine for entry in delta.logprobs] == token_ids
            assert all(len(entry.top) == 3 for delta in mine for entry in delta.logprobs)
            assert (mine[0].prompt_logprobs is not None) == (index == 0)
            assert mine[-1].finish_reason == "length"
        assert len(set(texts)) == 3
        again = await collect(pool, request(SamplingParams(max_tokens=40, seed=6, ignore_eos=True)))
        assert "".join(delta.text for delta in again) == texts[1]


async def test_a_repeated_prompt_is_found_in_the_cache(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model, "--block-size", "4"):
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        wanted = request(SamplingParams(max_tokens=2), prompt=list(range(30)))
        first, second = await collect(pool, wanted), await collect(pool, wanted)
        assert first[-1].num_cached_tokens == 0
        assert second[0].num_cached_tokens == 28


async def test_leaving_frees_the_engine_within_a_step(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model, "--simulated-step-ms", "20"):
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        async with aclosing(pool.generate("", request(LONG))) as deltas:
            await anext(deltas)
            await until_stats(pool, lambda running, waiting: running == 1)
        await until_stats(pool, lambda running, waiting: running == 0)
        stats = pool.status()[0].stats
        assert stats is not None
        assert stats.finished == {"abort": 1}


async def test_a_full_queue_is_an_overload(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    flags = ("--simulated-step-ms", "20", "--max-num-seqs", "1", "--max-num-waiting", "1")
    async with engine(addresses[0], model, *flags):
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        running = asyncio.create_task(collect(pool, request(LONG)))
        await until_stats(pool, lambda running, waiting: running == 1)
        waiting = asyncio.create_task(collect(pool, request(LONG)))
        await until_stats(pool, lambda running, waiting: waiting == 1)
        with pytest.raises(OverloadedError) as caught:
            await collect(pool, request(LONG))
        assert caught.value.retry_after_s > 0
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)


async def test_a_killed_engine_fails_streams_that_may_not_wait_and_its_successor_is_taken(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(addresses[0], failover_wait_s=0.0)
    async with engine(addresses[0], model, "--simulated-step-ms", "5") as process:
        await pool.wait_ready(DEADLINE_S)
        async with aclosing(pool.generate("", request(LONG))) as deltas:
            await anext(deltas)
            process.kill()
            with pytest.raises(EngineUnavailableError, match="connection"):
                async for _ in deltas:
                    pass
    async with engine(addresses[0], model):
        await pool.wait_ready(DEADLINE_S)
        assert (await collect(pool, request(LONG)))[-1].finish_reason == "length"


async def test_a_draining_engine_ends_its_streams_and_takes_no_more(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model, "--simulated-step-ms", "2") as process:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        async with aclosing(pool.generate("", request(LONG))) as deltas:
            await anext(deltas)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(DEADLINE_S):
                while pool.status()[0].state != "draining":
                    await asyncio.sleep(0.005)
            with pytest.raises(EngineUnavailableError, match="draining"):
                await collect(pool, request(LONG))
            reasons = [delta.finish_reason async for delta in deltas]
            assert reasons[-1] == "length"


async def test_a_stopped_engine_is_found_out_by_ping(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model) as process:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(EngineUnavailableError, match="ping"):
            await pool.ping(0.2)
        process.send_signal(signal.SIGCONT)
        assert await pool.ping(DEADLINE_S)


async def test_hundreds_of_streams_at_once(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with engine(addresses[0], model):
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        sampling = SamplingParams(max_tokens=30, seed=9, ignore_eos=True)
        wanted = [request(sampling, prompt=[1, 2, i % 7]) for i in range(400)]
        results = await asyncio.gather(*(collect(pool, each) for each in wanted))
        texts = ["".join(delta.text for delta in deltas) for deltas in results]
        assert texts == [texts[i % 7] for i in range(400)]
        assert len(set(texts)) == 7
        assert pool.stats().requests_finished == 400
