"""The responses that this process generates in the background: begun, looked after, ended.

what happens                    the row                             the task
it begins                       queued, this process its owner      runs
its first token                 in_progress                         goes on
it ends, or fails               its end, no owner                   ends
it is cancelled or deleted,     its end without owner, or gone      is cancelled when the lease is renewed,
  by whatever process                                               at once if it was asked here
this process shuts down         failed, once its time is up         ends
this process is gone            failed, said by whoever reads it    -
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Protocol

from splitserve.engine_core.errors import InvalidRequestError, SplitServeError
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.http.limits import EndReason, InFlightRequests
from splitserve.frontend.response_store.errors import RecordTooLargeError, StoreUnavailableError
from splitserve.frontend.response_store.records import Record
from splitserve.frontend.response_store.rows import RowKey
from splitserve.frontend.response_store.store import ResponseStore
from splitserve.frontend.responses.kept.event_log import EventLog

logger = logging.getLogger("frontend")

# A cancellation elsewhere is noticed after so long; a lease lasts ten times that.
RENEW_S = 2.0
# What a shutdown leaves for the last words of what it ended.
_GRACE_S = 3.0


class Unattended(Protocol):
    """A response without a client."""

    @property
    def key(self) -> RowKey:
        """Where it is kept."""

    def record(self, response: bytes, owner: str = "") -> Record:
        """Return what is kept of it when it stands like this."""

    def queued(self) -> bytes:
        """Return it before it has begun."""

    def in_progress(self) -> bytes:
        """Return it when it has begun."""

    async def run(self, on_begun: Callable[[], None], on_events: Callable[[bytes], None]) -> bytes:
        """Generate it; return it when it has ended.

        Args:
            on_begun: called once there is something of it.
            on_events: called with its events, if they are wanted, all but the last.
        """

    def failed(self, error: Exception, *, with_output: bool = True) -> bytes:
        """Return it when an error has ended it, as far as it came or without output."""


class BackgroundRuns:
    """The background responses of this process; belongs to the event loop."""

    def __init__(self, store: ResponseStore, requests: InFlightRequests, max_runs: int) -> None:
        """Begin without any.

        Args:
            store: where they are kept.
            requests: of this process, which a shutdown ends.
            max_runs: the most at once.
        """
        self._store = store
        self._requests = requests
        self._max_runs = max_runs
        self._owner = secrets.token_hex(16)
        self._runs: dict[RowKey, asyncio.Task[None]] = {}
        self._num_starting = 0
        # Whose beginning the store may have, although its client heard of an error.
        self._unsure: set[RowKey] = set()
        self._renewing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._runs)

    async def start(self, response: Unattended) -> bytes:
        """Begin a response, which is kept from now on; return it as it is then.

        Raises:
            HttpError: 429, there are too many.
            InvalidRequestError: another of the same id is in progress.
            StoreUnavailableError, RecordTooLargeError: it cannot be kept.
        """
        if len(self._runs) + self._num_starting >= self._max_runs:
            raise HttpError(
                429,
                "overloaded",
                "This server has too many responses in the background; try again shortly.",
                1.0,
            )
        self._num_starting += 1
        try:
            if not self._runs:
                # Else it is renewed now and then.
                await self._store.renew(self._owner)
            queued = response.queued()
            if not await self._store.add(response.key, response.record(queued, self._owner)):
                raise InvalidRequestError("request_id: a response of this id is in progress", "request_id")
        except StoreUnavailableError:
            self._unsure.add(response.key)
            self._renew_from_now()
            raise
        finally:
            self._num_starting -= 1
        if response.key in self._runs:
            # Cancelled or deleted elsewhere, which it has not heard yet.
            self.cancel(response.key)
            await asyncio.wait([self._runs[response.key]])
        task = asyncio.create_task(self._run(response), name=f"background {response.key.id}")
        self._runs[response.key] = task
        task.add_done_callback(partial(self._ended, response.key))
        self._unsure.discard(response.key)
        self._renew_from_now()
        return queued

    def cancel(self, key: RowKey) -> None:
        """End a response, if it is one of these, without a word to the store."""
        if key in self._runs:
            self._runs[key].cancel()

    @contextlib.asynccontextmanager
    async def running(self, shutdown_timeout_s: float) -> AsyncGenerator[None, None]:
        """Let responses run while the context is open; at its end they get some time.

        Args:
            shutdown_timeout_s: for how long; a signal may have begun it earlier.
        """
        try:
            yield
        finally:
            await self._wait(shutdown_timeout_s)
            await self._wait(_GRACE_S if self._end() else 0)
            left = [*self._runs.values(), *([self._renewing] if self._renewing else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _wait(self, timeout_s: float) -> None:
        if self._runs:
            await asyncio.wait(self._runs.values(), timeout=timeout_s)

    def _end(self) -> bool:
        if self._runs:
            self._requests.end_all(EndReason.SHUTDOWN)
        return bool(self._runs)

    async def _run(self, response: Unattended) -> None:
        begun, events = asyncio.Event(), EventLog(self._store, response.key, self._owner)
        events.begin()
        noting = asyncio.create_task(self._note_begun(response, begun))
        try:
            last = await self._generate(response, begun, events)
        except asyncio.CancelledError:
            # Cancelled, deleted or replaced: the store knows.
            noting.cancel()
            events.drop()
            raise
        if not begun.is_set():
            noting.cancel()
        await asyncio.gather(noting, events.end(), return_exceptions=True)
        await self._finish(response, events, last)

    async def _generate(self, response: Unattended, begun: asyncio.Event, events: EventLog) -> bytes:
        """Return the response when it has ended, whatever has ended it but a cancellation."""
        request = self._requests.arrive()
        try:
            return await response.run(begun.set, events.add)
        except asyncio.CancelledError:
            if request.end_reason is None:
                raise
            request.task.uncancel()
            return response.failed(HttpError(503, "shutting_down", "shutdown timeout passed"))
        except Exception as error:
            if not isinstance(error, SplitServeError):
                log_event(logger, logging.ERROR, "unhandled_error", error, request_id=response.key.id)
            return response.failed(error)
        finally:
            self._requests.leave(request)

    def _ended(self, key: RowKey, task: asyncio.Task[None]) -> None:
        if self._runs.get(key) is task:
            del self._runs[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log_event(logger, logging.ERROR, "unhandled_error", error, request_id=key.id)

    async def _note_begun(self, response: Unattended, begun: asyncio.Event) -> None:
        await begun.wait()
        # Whoever asks meanwhile hears that it is queued.
        with contextlib.suppress(StoreUnavailableError):
            record = response.record(response.in_progress(), self._owner)
            await self._store.replace(response.key, record, self._owner)

    async def _finish(self, response: Unattended, events: EventLog, last: bytes) -> None:
        """Keep the end of a response, however long that takes: nobody else has it."""
        while True:
            try:
                await events.write()
                await self._store.replace(response.key, response.record(last), self._owner)
                return
            except RecordTooLargeError as error:
                # Its input fits, or it would not have begun.
                last = response.failed(error, with_output=False)
            except StoreUnavailableError as error:
                log_event(logger, logging.WARNING, "response_store_error", detail=str(error))
                await asyncio.sleep(RENEW_S)

    def _renew_from_now(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(), name="renew-responses")

    async def _renew(self) -> None:
        while self._runs or self._unsure:
            await asyncio.sleep(RENEW_S)
            await self.look()

    async def look(self) -> None:
        """Extend the lease, end what others have taken away, and delete what never began."""
        before, unsure = dict(self._runs), set(self._unsure)
        try:
            owned = await self._store.renew(self._owner)
            for key in unsure & owned - before.keys():
                await self._store.delete(key)
            self._unsure -= unsure
        except StoreUnavailableError as error:
            log_event(logger, logging.WARNING, "response_store_error", detail=str(error))
            return
        for key, task in before.items():
            if key not in owned:
                task.cancel()
