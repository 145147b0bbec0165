"""Answers on their way into the store: several at a time, each kept before the batch ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.batches.store.batches import Answered
from splitserve.frontend.batches.store.errors import FileStoreUnavailableError
from splitserve.frontend.batches.store.store import FileStore
from splitserve.frontend.batches.store.tables import Key

logger = logging.getLogger("frontend")

# A crash loses so much work, never an answer that was counted; and a write costs more than a line of it.
_GATHER_S = 0.1
_RETRY_S = 1.0
# A write of many large answers would hold the database for long.
_WRITE_BYTES = 4 * 2**20
_WRITE_ANSWERS = 512


class AnswerLog:
    """Writes the answers of one batch; belongs to the event loop."""

    def __init__(
        self,
        store: FileStore,
        key: Key,
        owner: str,
        *,
        on_lost: Callable[[], None],
        on_full: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            store: that the batch is kept in.
            key: of the batch.
            owner: of the batch, this process.
            on_lost: called when it is somebody else's.
            on_full: called when no more should be written.
        """
        self._store = store
        self._key = key
        self._owner = owner
        self._on_lost = on_lost
        self._on_full = on_full
        self._held: list[Answered] = []
        self._changed = asyncio.Event()
        self._is_lost = False

    def add(self, answer: Answered) -> None:
        """Write an answer soon."""
        self._held.append(answer)
        self._changed.set()

    async def run(self) -> None:
        """Write what comes, until it is cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(_GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Write all that was added, however long the store takes to be there again."""
        while self._held and not self._is_lost:
            part = self._next()
            try:
                self._is_lost = not await self._store.batches.answer(self._key, self._owner, part)
                if not await self._store.has_room():
                    self._on_full()
            except FileStoreUnavailableError as error:
                log_event(logger, logging.WARNING, "file_store_error", detail=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            del self._held[: len(part)]
        self._changed.clear()
        if self._is_lost:
            self._on_lost()

    def _next(self) -> list[Answered]:
        num_bytes = 0
        for i, answer in enumerate(self._held[:_WRITE_ANSWERS]):
            num_bytes += len(answer.data)
            if num_bytes > _WRITE_BYTES:
                return self._held[: max(1, i)]
        return self._held[:_WRITE_ANSWERS]
