"""The batches that this frontend works on: claimed, looked after, let go.

when                                   what
now and then                           leases are renewed; what others have taken or cancelled is stopped;
                                       batches that nobody works on are claimed, while there is room
a batch is made or cancelled here      the same, at once
the frontend drains or ends            answers that are there are written, and the leases end: others go on
the frontend is killed                 its leases run out, and others go on
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from functools import partial

from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.batches.run.batch_run import BatchLimits, BatchRun, Stop
from splitserve.frontend.batches.run.line_call import LineCalls
from splitserve.frontend.batches.run.pace import Pace
from splitserve.frontend.batches.store.batches import BatchRow
from splitserve.frontend.batches.store.errors import FileStoreUnavailableError
from splitserve.frontend.batches.store.store import FileStore
from splitserve.frontend.batches.store.tables import Key

logger = logging.getLogger("frontend")

# A lease lasts five times that.
LOOK_S = 2.0
# They share the pace; more would hold a piece of a file each for nothing.
MAX_RUNS = 16


class BatchRunner:
    """Works on batches while running() is open; belongs to the event loop."""

    def __init__(
        self,
        store: FileStore,
        calls: LineCalls,
        pace: Pace,
        limits: BatchLimits,
        is_draining: Callable[[], bool],
    ) -> None:
        """Begin without any.

        Args:
            store: where they are kept.
            calls: answer their lines.
            pace: of all of them.
            limits: of one.
            is_draining: whether this process is about to end.
        """
        self._store = store
        self._calls = calls
        self._pace = pace
        self._limits = limits
        self._is_draining = is_draining
        self._owner = secrets.token_hex(16)
        self._runs: dict[Key, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._look_now = asyncio.Event()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def num_lines(self) -> int:
        """Lines in flight."""
        return self._pace.num_running

    def wake(self) -> None:
        """Look at once."""
        self._look_now.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Work while the context is open."""
        looking = asyncio.create_task(self._look_for_ever(), name="batches")
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
            await self._leave()

    async def _look_for_ever(self) -> None:
        while not self._is_draining():
            try:
                await self._look()
            except FileStoreUnavailableError as error:
                log_event(logger, logging.WARNING, "file_store_error", detail=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look_now.wait()
            self._look_now.clear()
        await self._leave()

    async def _look(self) -> None:
        before = dict(self._runs)
        owned = await self._store.batches.renew(self._owner)
        for key, (run, _) in before.items():
            if key not in owned:
                run.stop(Stop.LOST)
            elif owned[key]:
                run.stop(Stop.CANCELLED)
        for key in owned.keys() - before.keys() - self._runs.keys():
            # Its work ended in an error.
            await self._store.batches.release(self._owner, key)
        if (room := MAX_RUNS - len(self._runs)) > 0:
            for row in await self._store.batches.claim(self._owner, room):
                self._start(row)

    def _start(self, row: BatchRow) -> None:
        run = BatchRun(self._store, row, self._calls, self._pace, self._limits)
        task = asyncio.create_task(run.run(), name=f"batch {row.id}")
        self._runs[row.key] = (run, task)
        task.add_done_callback(partial(self._ended, row.key))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        if key in self._runs and self._runs[key][1] is task:
            del self._runs[key]
        if task.cancelled() or (error := task.exception()) is None:
            return
        log_event(logger, logging.WARNING, "batch_interrupted", error, batch_id=key.id)

    async def _leave(self) -> None:
        """Stop all work, keep what is there, and let others go on."""
        tasks = [task for _, task in self._runs.values()]
        for run, _ in self._runs.values():
            run.stop(Stop.LEAVING)
        if tasks:
            await asyncio.wait(tasks, timeout=LOOK_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._store.batches.release(self._owner)
        except FileStoreUnavailableError as error:
            log_event(logger, logging.WARNING, "file_store_error", detail=str(error))
