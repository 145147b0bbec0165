"""A search's task may be cancelled by others than its owner: by the end of the event loop."""

import asyncio

from splitserve.frontend.engines.beam.search_generation import SearchGeneration
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.engines.status import PoolStats


async def never() -> list[OutputDelta]:
    await asyncio.get_running_loop().create_future()
    return []


async def test_closing_after_the_loop_cancelled_the_search_counts_it_as_aborted() -> None:
    stats, woken = PoolStats(), asyncio.Event()
    generation = SearchGeneration(never(), woken.set, stats)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await woken.wait()
    generation.close()
    assert (stats.requests_aborted, stats.requests_failed) == (1, 0)
