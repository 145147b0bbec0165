"""The deltas of several prompts as one stream of batches: what is ready together is written together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from frontend.generation import OutputDelta

# Deltas held for a client that reads slowly, over all prompts; beyond it the pool is not asked for more.
MAX_HELD = 1024


class PromptDelta(NamedTuple):
    """A delta and the prompt it belongs to."""

    prompt_idx: int
    delta: OutputDelta


Source = AsyncGenerator[OutputDelta, None]


async def merge_deltas(sources: Sequence[Source], n: int) -> AsyncGenerator[list[PromptDelta], None]:
    """Yield what the sources yield; closes all of them at its end, whatever the end.

    Args:
        sources: one per prompt.
        n: sequences per source; a single sequence is passed through without a task in between.

    Raises:
        The first error of any source; the others are closed then.
    """
    merged = _single(sources[0]) if len(sources) * n == 1 else _Merge(sources).batches()
    async with contextlib.aclosing(merged):
        async for batch in merged:
            yield batch


async def _single(source: Source) -> AsyncGenerator[list[PromptDelta], None]:
    async with contextlib.aclosing(source):
        async for delta in source:
            yield [PromptDelta(0, delta)]


class _Merge:
    """One pump task per source, one list between them and the reader."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._held: list[PromptDelta] = []
        self._error: BaseException | None = None
        self._num_running = len(sources)
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()

    async def batches(self) -> AsyncGenerator[list[PromptDelta], None]:
        pumps = [asyncio.create_task(self._pump(i, source)) for i, source in enumerate(self._sources)]
        try:
            while self._num_running or self._held:
                await self._changed.wait()
                self._changed.clear()
                if self._error is not None:
                    raise self._error
                batch, self._held = self._held, []
                self._drained.set()
                if batch:
                    yield batch
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, prompt_idx: int, source: Source) -> None:
        try:
            async with contextlib.aclosing(source):
                async for delta in source:
                    while len(self._held) >= MAX_HELD:
                        self._drained.clear()
                        await self._drained.wait()
                    self._held.append(PromptDelta(prompt_idx, delta))
                    self._changed.set()
        except Exception as error:
            self._error = self._error or error
        finally:
            self._num_running -= 1
            self._changed.set()
