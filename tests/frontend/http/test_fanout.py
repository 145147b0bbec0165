"""Several prompts and completions as one stream of batches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from frontend.fanout import MAX_HELD, PromptDelta, merge_deltas
from frontend.generation import OutputDelta
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.fake_pool import FakePool


class Source:
    """A source that yields `count` deltas at a time, whenever `step` is set, and knows if it was closed."""

    def __init__(self, count: int, num_steps: int = 1) -> None:
        self.count = count
        self.num_steps = num_steps
        self.num_yielded = 0
        self.closed = False

    async def run(self) -> AsyncGenerator[OutputDelta, None]:
        try:
            for _ in range(self.num_steps):
                await asyncio.sleep(0)
                for index in range(self.count):
                    self.num_yielded += 1
                    yield OutputDelta(index, "x", [1])
        finally:
            self.closed = True


async def collect(sources: list[Source], n: int) -> list[list[PromptDelta]]:
    async with asyncio.timeout(5):
        return [batch async for batch in merge_deltas([source.run() for source in sources], n)]


async def test_what_one_step_brings_for_all_completions_comes_in_one_batch() -> None:
    assert [len(batch) for batch in await collect([Source(8, num_steps=3)], n=8)] == [8, 8, 8]


async def test_nothing_is_lost_and_the_order_of_each_sequence_is_kept() -> None:
    sources = [Source(2, num_steps=50) for _ in range(5)]
    batches = await collect(sources, n=2)
    for prompt_idx in range(5):
        mine = [item.delta.index for batch in batches for item in batch if item.prompt_idx == prompt_idx]
        assert mine == [0, 1] * 50
    assert all(source.closed for source in sources)


async def test_an_empty_source_ends_the_stream() -> None:
    assert await collect([Source(0)], n=1) == []
    assert await collect([Source(0), Source(0)], n=1) == []


async def test_the_first_error_is_raised_and_all_sources_are_closed() -> None:
    async def failing() -> AsyncGenerator[OutputDelta, None]:
        await asyncio.sleep(0)
        raise KeyError("first")
        yield

    others = [Source(1, num_steps=10**6) for _ in range(2)]
    with pytest.raises(KeyError, match="first"):
        async for _ in merge_deltas([others[0].run(), failing(), others[1].run()], 1):
            pass
    assert all(source.closed for source in others)


async def test_a_reader_that_stops_holds_the_sources_back() -> None:
    source, other = Source(1, num_steps=10**6), Source(1, num_steps=10**6)
    async with contextlib.aclosing(merge_deltas([source.run(), other.run()], 1)) as merged:
        await anext(merged)
        for _ in range(10 * MAX_HELD):
            await asyncio.sleep(0)
        # The held ones, and one in the hand of each pump.
        assert source.num_yielded + other.num_yielded <= MAX_HELD + 2 * 2 + 2
    assert source.closed
    assert other.closed


async def test_what_is_ready_together_is_sent_together(make_server: ServerFactory, pool: FakePool) -> None:
    import httpx

    num_sent = 0
    url = await make_server()

    async def script(request):
        for _ in range(3):
            await asyncio.sleep(0.02)
            for index in range(16):
                yield OutputDelta(index, "x", [1])

    pool.script = script
    async with (
        httpx.AsyncClient() as client,
        client.stream(
            "POST", f"{url}/v1/completions", json={"prompt": "x", "n": 16, "stream": True}
        ) as response,
    ):
        async for chunk in response.aiter_raw():
            num_sent += 1
            assert chunk
    assert num_sent <= 4
