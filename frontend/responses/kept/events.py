"""The events of a stream whose response is kept: the last one is sent once that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.openai.run_events import RunEvents
from splitserve.frontend.responses.event_writer import EventWriter
from splitserve.frontend.responses.kept.keeper import Keeper
from splitserve.frontend.responses.snapshot import Snapshot


class KeptEvents:
    """The source of such a stream; see frontend.http.response.event_source.

    Attributes:
        finished: whether take() has returned the last event.
    """

    def __init__(
        self, events: RunEvents, writer: EventWriter, snapshot: Snapshot, keeper: Keeper, slices: SliceQueue
    ) -> None:
        """Prepare.

        Args:
            events: all but the last.
            writer: of the events, which leaves out the last.
            snapshot: of the response.
            keeper: of the response.
            slices: of the process.
        """
        self.finished = False
        self._events = events
        self._writer = writer
        self._snapshot = snapshot
        self._keeper = keeper
        self._slices = slices
        self._keeping: asyncio.Task[bytes] | None = None
        self._closed = False

    @property
    def behind(self) -> bool:
        """Whether take() would return more now."""
        return self._events.behind

    @property
    def in_event(self) -> bool:
        """Whether the last take() ended within an event."""
        return self._events.in_event

    async def open(self, on_ready: Callable[[], None]) -> None:
        """Open the run."""
        self._on_ready = on_ready
        await self._events.open(on_ready)

    def fast_path(self) -> None:
        """Return None: every event has its own number."""
        return None

    def take(self) -> bytes:
        """Return what is new, at the end the last event.

        Raises:
            SplitServeError: the run failed, or the response was to be kept and is not.
        """
        if self._keeping is not None:
            return self._last() if self._keeping.done() and not self.finished else b""
        data = self._events.take()
        if self._events.finished:
            self._keeping = asyncio.create_task(self._keeper.keep(self._snapshot, self._slices))
            self._keeping.add_done_callback(self._kept)
        return data

    def _last(self) -> bytes:
        assert self._keeping is not None, "it is kept before it ends"
        response = self._keeping.result()
        self.finished = True
        return self._writer.end(response)

    def _kept(self, keeping: asyncio.Task[bytes]) -> None:
        # An error is raised by take(); looked at here, it is no surprise to asyncio if nobody takes.
        if keeping.cancelled():
            return
        keeping.exception()
        if not self._closed:
            self._on_ready()

    def close(self) -> None:
        """Close the run; what is not kept yet may stay so."""
        self._closed = True
        self._events.close()
        if self._keeping is not None:
            self._keeping.cancel()
