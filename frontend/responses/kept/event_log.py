"""The events of a response in the background, on their way to the store.

All but the last are kept: that one tells what the record tells, and is made of it when somebody reads.
"""

from __future__ import annotations

import asyncio
import contextlib

from splitserve.frontend.response_store.errors import StoreUnavailableError
from splitserve.frontend.response_store.rows import RowKey
from splitserve.frontend.response_store.store import ResponseStore

# Readers get them this much later at most, and then when they look.
FLUSH_S = 0.25
END_OF_EVENT = b"\n\n"


def split_events(data: bytes) -> list[bytes]:
    """Return whole events one by one; no JSON text has an empty line."""
    return [each + END_OF_EVENT for each in data.split(END_OF_EVENT)[:-1]]


class EventLog:
    """Collects events and writes them now and then; what cannot be written waits."""

    def __init__(self, store: ResponseStore, key: RowKey, owner: str) -> None:
        """Begin with none.

        Args:
            store: to write to.
            key: of the response.
            owner: of its record.
        """
        self._store = store
        self._key = key
        self._owner = owner
        self._has_ended = asyncio.Event()
        self._num_written = 0
        # As many as the response has, so its length bounds them.
        self._waiting: list[bytes] = []

    def add(self, data: bytes) -> None:
        """Take the next events, whole ones."""
        self._waiting += split_events(data)

    def begin(self) -> None:
        """Write now and then from now on; end() or drop() follows."""
        self._writing = asyncio.create_task(self._write_until_end(), name=f"write events of {self._key.id}")

    async def end(self) -> None:
        """Write no more by itself; returns when nothing is being written."""
        self._has_ended.set()
        await self._writing

    def drop(self) -> None:
        """Write no more: the record has another owner."""
        self._writing.cancel()

    async def _write_until_end(self) -> None:
        while not self._has_ended.is_set():
            with contextlib.suppress(StoreUnavailableError):
                await self.write()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._has_ended.wait()

    async def write(self) -> None:
        """Write what there is; a record that has another owner by now gets nothing.

        Raises:
            StoreUnavailableError: it waits.
        """
        events = self._waiting[:]
        if events:
            await self._store.append(self._key, self._owner, self._num_written, events)
            self._num_written += len(events)
            del self._waiting[: len(events)]
