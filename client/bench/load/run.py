"""One run: requests sent at their times, as many at once as allowed, each conversation in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from splitserve.client.bench.datasets.sample import Conversation, Messages
from splitserve.client.bench.load.arrivals import Times
from splitserve.client.bench.load.measured import Measured
from splitserve.client.bench.load.sender import Sender, as_messages


class Run(NamedTuple):
    """What was seen: `requests` in the order of the dataset, and how many seconds all of them took."""

    requests: list[Measured]
    duration_s: float


class Runner:
    """Sends conversations.

    Args:
        sender: of each request.
        max_concurrency: requests in flight at most, None for any number.
        on_end: called at the end of each request.
    """

    def __init__(self, sender: Sender, max_concurrency: int | None, on_end: Callable[[], object]) -> None:
        self._sender = sender
        self._slots = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
        self._on_end = on_end

    async def run(self, conversations: Sequence[Conversation], times_s: Times) -> Run:
        """Send each conversation at its time, in seconds from now."""
        # Nothing that is kept here is cyclic; a collection would stop the clock of all streams.
        gc.collect()
        gc.disable()
        try:
            start_s = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                open_tasks = []
                for conversation, at_s in zip(conversations, times_s.tolist(), strict=True):
                    wait_s = start_s + at_s - time.perf_counter()
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                    open_tasks.append(tasks.create_task(self._converse(conversation)))
            duration_s = time.perf_counter() - start_s
        finally:
            gc.enable()
        return Run([seen for task in open_tasks for seen in task.result()], duration_s)

    async def _converse(self, conversation: Conversation) -> list[Measured]:
        seen: list[Measured] = []
        history: Messages = []
        for sample in conversation:
            due_s = time.perf_counter()
            async with self._slots:
                seen.append(await self._sender.send(sample, history, time.perf_counter() - due_s))
            self._on_end()
            if seen[-1].error:
                break
            answer: dict[str, object] = {"role": "assistant", "content": seen[-1].text}
            history = [*history, *as_messages(sample.prompt), answer]
        return seen
