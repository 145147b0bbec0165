"""The response store as handlers use it: records with a time to live, a bound on their size, deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, TypeVar

from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.database.tended import tended
from splitserve.frontend.response_store.errors import RecordTooLargeError, StoreUnavailableError
from splitserve.frontend.response_store.off_loop import off_loop
from splitserve.frontend.response_store.records import Record, pack, pack_bytes, unpack, unpack_bytes
from splitserve.frontend.response_store.rows import Database, Events, Row, RowKey

T = TypeVar("T")
logger = logging.getLogger("frontend")

# Longer than the databases' own limits, whose errors say more.
DEADLINE_S = 12.0
# After an error, requests that would be kept if they could are not made to wait for the next.
FAILING_S = 5.0
TIDY_INTERVAL_S = 60.0
# A part of the bound; when so much was written, it is time to look at the sum.
_TIDY_PART = 64
_LARGEST_PART = 4
# An error and usage figures.
_END_BYTES = 4096


class StoreLimits(NamedTuple):
    """What is kept, and for how long.

    Attributes:
        ttl_s: seconds from a response's creation until it is deleted.
        max_bytes: of all data together, as it is stored; the oldest are deleted first.
        lease_s: seconds without a word after which a process counts as gone.
    """

    ttl_s: int
    max_bytes: int
    lease_s: float = 20.0

    @property
    def max_record_bytes(self) -> int:
        """The largest record that is begun or put, as JSON."""
        return self.max_bytes // _LARGEST_PART


class ResponseStore:
    """Kept responses; belongs to an event loop. Every method may raise StoreUnavailableError.

    Attributes:
        limits: of what is kept.
        num_errors: how often the database could not be used.
    """

    def __init__(
        self, database: Database, limits: StoreLimits, clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare; nothing is connected before the first call.

        Args:
            database: to keep them in.
            limits: of what is kept.
            clock: returns seconds since 1970.
        """
        self.limits = limits
        self.num_errors = 0
        self._database = database
        self._clock = clock
        self._failed_s = -FAILING_S
        self._num_untidy_bytes = 0
        self._tidy_now = asyncio.Event()

    @property
    def is_failing(self) -> bool:
        """Whether the database could not be used a moment ago."""
        return time.monotonic() - self._failed_s < FAILING_S

    async def put(self, key: RowKey, record: Record) -> None:
        """Keep a record, in place of one of the same key.

        Raises:
            RecordTooLargeError: it is larger than what is kept of one.
        """
        await self._ask(self._database.put(await self._row(key, record)))

    async def add(self, key: RowKey, record: Record) -> bool:
        """Keep a record unless a process works on one of the same key; return whether it is kept.

        Raises:
            RecordTooLargeError: as put().
        """
        return await self._ask(self._database.add(await self._row(key, record)))

    async def replace(self, key: RowKey, record: Record, owner: str) -> bool:
        """Keep a record in place of one that has this owner; return whether it is kept.

        Raises:
            RecordTooLargeError: as put(), but for an allowance for what an end adds to a record.
        """
        row = await self._row(key, record, _END_BYTES)
        return await self._ask(self._database.replace(row, owner))

    async def get(self, key: RowKey) -> Record | None:
        """Return a record, None if there is none."""
        row = await self._ask(self._database.get(key, self._clock()))
        if row is None:
            return None
        return Record(row.created_s, *await off_loop(len(row.data), lambda: unpack(row.data)), row.owner)

    async def append(self, key: RowKey, owner: str, first: int, events: Sequence[bytes]) -> bool:
        """Keep events of a record that has this owner; return whether it has.

        Args:
            key: of the record.
            owner: of the record.
            first: number of the first event.
            events: one or more.
        """
        text = b"".join(events)
        data = await off_loop(len(text), lambda: pack_bytes(text))
        self._count(data)
        made = Events(first, first + len(events) - 1, data)
        return await self._ask(self._database.append(key, owner, made))

    async def events(self, key: RowKey, after: int) -> list[tuple[int, bytes]]:
        """Return the events of a record from a number on, at least those after it.

        Returns:
            The number of the first event of each piece, and the piece.
        """
        found = await self._ask(self._database.events(key, after))
        num_bytes = sum(len(each.data) for each in found)
        return await off_loop(num_bytes, lambda: [(each.first, unpack_bytes(each.data)) for each in found])

    async def delete(self, key: RowKey) -> bool:
        """Delete a record; return whether there was one."""
        return await self._ask(self._database.delete(key, self._clock()))

    async def renew(self, owner: str) -> set[RowKey]:
        """Extend the lease of an owner; return which records are still its."""
        return await self._ask(self._database.renew(owner, self._clock(), self.limits.lease_s))

    async def is_alive(self, owner: str) -> bool:
        """Return whether an owner has a lease."""
        return await self._ask(self._database.is_alive(owner, self._clock()))

    async def tidy(self) -> int:
        """Delete what has expired or is too much; return how many had not expired."""
        self._num_untidy_bytes = 0
        return await self._ask(self._database.tidy(self._clock(), self.limits.max_bytes))

    def running(self) -> AbstractAsyncContextManager[None]:
        """Tidy up now and then while the context is open; close the database at its end."""
        return tended(self._tidy_for_ever(), "tidy-responses", self._database.close)

    async def _tidy_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIDY_INTERVAL_S):
                    await self._tidy_now.wait()
            self._tidy_now.clear()
            try:
                num_evicted = await self.tidy()
            except StoreUnavailableError as error:
                log_event(logger, logging.WARNING, "response_store_error", detail=str(error))
                # Whatever is written meanwhile: not in a loop.
                await asyncio.sleep(FAILING_S)
                continue
            if num_evicted:
                log_event(logger, logging.INFO, "responses_evicted", count=num_evicted)

    async def _row(self, key: RowKey, record: Record, allowed_bytes: int = 0) -> Row:
        if record.num_bytes > self.limits.max_record_bytes + allowed_bytes:
            raise RecordTooLargeError(record.num_bytes, self.limits.max_record_bytes)
        data = await off_loop(record.num_bytes, lambda: pack(record))
        self._count(data)
        return Row(key, record.created_s, int(record.created_s) + self.limits.ttl_s, record.owner, data)

    def _count(self, data: bytes) -> None:
        self._num_untidy_bytes += len(data)
        if self._num_untidy_bytes >= self.limits.max_bytes // _TIDY_PART:
            self._tidy_now.set()

    async def _ask(self, asked: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await asked
        except (StoreUnavailableError, TimeoutError) as error:
            self.num_errors += 1
            self._failed_s = time.monotonic()
            if isinstance(error, StoreUnavailableError):
                raise
            raise StoreUnavailableError(f"no answer within {DEADLINE_S:g} s") from None
