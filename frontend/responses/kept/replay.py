"""The events of a kept response, for a client that begins to read or goes on: those there are, then more.

They are read from the store whichever frontend generates the response, so there is one way for all clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from splitserve.frontend.http.dialect import ErrorDetail
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.http.response.sse import named_event
from splitserve.frontend.response_store.records import Record
from splitserve.frontend.response_store.rows import RowKey
from splitserve.frontend.response_store.store import ResponseStore
from splitserve.frontend.responses.kept.event_log import split_events
from splitserve.frontend.responses.schema.events import (
    ErrorEvent,
    ResponseCompleted,
    ResponseFailed,
    ResponseIncomplete,
)
from splitserve.frontend.responses.schema.response import ResponseObject, ResponseStatus

# How often a reader looks for more.
POLL_S = 0.25
_ENDS = {"completed": ResponseCompleted, "incomplete": ResponseIncomplete}


class _Status(msgspec.Struct):
    status: ResponseStatus


class EventReplay:
    """The source of such a stream; see frontend.http.response.event_source.

    Attributes:
        finished: whether take() has returned the last event.
        behind: never: what is taken is all that was read.
        in_event: never.
    """

    behind = False
    in_event = False

    def __init__(
        self,
        store: ResponseStore,
        key: RowKey,
        after: int,
        current: Callable[[Record], Awaitable[Record]],
    ) -> None:
        """Prepare.

        Args:
            store: that has the events.
            key: of the response.
            after: number of the last event that the client has; -1 for none.
            current: returns a record as it is by now, ended if its process is gone.
        """
        self.finished = False
        self._store = store
        self._key = key
        self._after = after
        self._current = current
        # Number of the next event that is read.
        self._next = 0
        self._ready: list[bytes] = []
        self._has_ended = False
        self._error: Exception | None = None
        self._taken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def open(self, on_ready: Callable[[], None]) -> None:
        """Begin to read."""
        self._on_ready = on_ready
        self._reading = asyncio.create_task(self._read(), name=f"events of {self._key.id}")

    def fast_path(self) -> None:
        """Return None: nothing here comes from an engine."""
        return None

    def take(self) -> bytes:
        """Return what was read.

        Raises:
            SplitServeError: the response was deleted, or the store fails.
        """
        if self._error is not None:
            raise self._error
        data = b"".join(self._ready)
        self._ready = []
        self.finished = self._has_ended
        self._taken.set()
        return data

    def failure(self, detail: ErrorDetail) -> bytes:
        """Return the event that tells of an error."""
        return named_event(
            ErrorEvent(
                sequence_number=self._next, code=detail.code, message=detail.message, param=detail.param
            )
        )

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        try:
            while not self._has_ended:
                await self._look()
                if self._ready or self._has_ended:
                    self._taken.clear()
                    self._on_ready()
                    # Nothing more is read for a client that does not read.
                    await self._taken.wait()
                await asyncio.sleep(POLL_S)
        except Exception as error:
            self._error = error
            self._on_ready()

    async def _look(self) -> None:
        # First the record: if that has ended, no event comes after those that are found.
        record = await self._store.get(self._key)
        if record is None:
            raise HttpError(404, "response_not_found", f"Response with id '{self._key.id}' not found.")
        record = await self._current(record)
        for first, piece in await self._store.events(self._key, self._next - 1):
            events = split_events(piece)
            self._ready += [
                event for i, event in enumerate(events, first) if i >= self._next and i > self._after
            ]
            self._next = max(self._next, first + len(events))
        if not record.owner:
            self._has_ended = True
            if self._next > self._after:
                self._ready.append(self._last(record))

    def _last(self, record: Record) -> bytes:
        status = msgspec.json.decode(record.response, type=_Status).status
        kind = _ENDS.get(status, ResponseFailed)
        response = cast(ResponseObject, msgspec.Raw(record.response))
        return named_event(kind(sequence_number=self._next, response=response))
