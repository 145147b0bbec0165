"""One event stream in progress: who writes its events, and when?

event                     before the head is sent              after
source has something      the task sends head and event        written at once, no task runs; plain text is
                                                               handed over to native code from then on
socket is full            -                                    taken back, written through the transport
source failed             the error's own status               the error as an event, then [DONE]
source is finished        head, last events, [DONE]            last events, [DONE]
keep-alive time passed    the task sends head and comment      a comment
source has a backlog      as above, slice by slice             slice by slice, one per turn of the loop
client does not read      -                                    the source is not asked until it has read
client hung up            the source is closed                 the source is closed
client sends no more      -                                    a comment, to see if it is still there
"""

from __future__ import annotations

import asyncio
import time

from starlette.types import Scope, Send

from splitserve.frontend.http.connection.body_writer import BODY_BYTES_STATE, BODY_EXTENSION, BodyWriter
from splitserve.frontend.http.connection.disconnect import ClientGoneError
from splitserve.frontend.http.dialect import dialect_of
from splitserve.frontend.http.limits import InFlightRequest
from splitserve.frontend.http.response.event_source import EventSource, FastPath
from splitserve.frontend.http.response.keep_alive import KeepAlive
from splitserve.frontend.http.slices import SliceQueue

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_now_s = time.monotonic


class OpenStream:
    """One stream in progress: a task waits for its start and its end; callbacks write in between.

    Attributes:
        started: whether the head has been sent.
        in_event: whether the last write ended within an event.
    """

    __slots__ = (
        "_awaits_slice",
        "_closed",
        "_error",
        "_fast_path",
        "_handed_over",
        "_keep_alive",
        "_last_write_s",
        "_loop",
        "_pending",
        "_request",
        "_scope",
        "_send",
        "_silence",
        "_slices",
        "_source",
        "_turn",
        "_writer",
        "in_event",
        "started",
    )

    def __init__(
        self, source: EventSource, keep_alive: KeepAlive, slices: SliceQueue, scope: Scope, send: Send
    ) -> None:
        self.started = False
        self.in_event = False
        self._source = source
        self._keep_alive = keep_alive
        self._slices = slices
        self._awaits_slice = self._closed = False
        self._scope = scope
        self._silence = dialect_of(scope).keep_alive
        self._send = send
        self._request: InFlightRequest | None = scope["state"].get("open_request")
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.Future[None] = self._loop.create_future()
        self._pending = b""
        self._error: Exception | None = None
        self._fast_path: FastPath | None = None
        self._handed_over = False
        self._last_write_s = _now_s()
        self._writer: BodyWriter = scope["extensions"][BODY_EXTENSION](self._on_change)

    async def run(self) -> None:
        """Run the stream; returns when the last event is written.

        Raises:
            ClientGoneError: the client hung up.
            Exception: what the source raised.
        """
        self._keep_alive.add(self, self._loop)
        await self._source.open(self._on_ready)
        self._fast_path = self._source.fast_path()
        while not (self.started and self._source.finished):
            await self._turn
            self._turn = self._loop.create_future()
            if self._writer.lost:
                raise ClientGoneError
            if self._error is not None:
                raise self._error
            if not self.started and (self._pending or self._source.finished):
                await self._start()

    def close(self) -> None:
        """Close the source and count what was written; nothing more is written."""
        self._closed = True
        self._take_back()
        self._fast_path = None
        self._source.close()
        self._keep_alive.discard(self)
        self._writer.close()
        self._scope["state"][BODY_BYTES_STATE] = self._writer.num_bytes

    async def _start(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        self.started = True
        data, self._pending = self._pending, b""
        if data:
            self._writer.write(data)
            self._last_write_s = _now_s()

    def _on_ready(self) -> None:
        """Write what is new; the task is woken only for the first event, errors and the end."""
        if self._awaits_slice:
            return
        try:
            self._take_back()
            if self._writer.paused or self._writer.lost or self._hand_over():
                return
            data = self._source.take()
            self.in_event = self._source.in_event
            if data and self.started:
                self._writer.write(data)
                self._last_write_s = _now_s()
        except Exception as error:
            # The task raises it: the caller of this callback serves other streams too.
            self._error = error
            self._wake()
            return
        if data and not self.started:
            self._pending += data
            self._wake()
        elif self._source.finished:
            self._wake()
        if self._source.behind:
            self._await_slice()

    def _await_slice(self) -> None:
        if not self._awaits_slice:
            self._awaits_slice = True
            self._slices.add(self._on_slice)

    def _on_slice(self) -> None:
        self._awaits_slice = False
        if not self._closed:
            self._on_ready()

    def _hand_over(self) -> bool:
        fast_path = self._fast_path
        if fast_path is not None and self.started and not self._source.behind:
            fd = self._writer.free_fd()
            self._handed_over = fd is not None and fast_path.hand_over(fd)
        return self._handed_over

    def _take_back(self) -> None:
        if not self._handed_over or self._fast_path is None:
            return
        self._handed_over = False
        back = self._fast_path.take_back()
        if back is not None:
            self._writer.add_relayed(back.num_body_bytes, back.unsent)
            self._last_write_s = max(self._last_write_s, back.last_write_s)

    def _wake(self) -> None:
        if not self._turn.done():
            self._turn.set_result(None)

    def _on_change(self) -> None:
        """The client hung up, sends no more, does not read, or reads again."""
        if self._writer.lost:
            # At once: afterwards the connection's descriptor is closed and may be reused.
            self._take_back()
            # Later: many clients may leave in one turn, and ending a stream takes 0.3 ms.
            self._slices.add(self._wake)
            return
        if self._request is not None:
            self._request.blocked_since = _now_s() if self._writer.paused else None
        if self._writer.half_closed and self.started:
            self.break_silence()
        if not self._writer.paused:
            # Later: many clients may resume reading in one turn, each with a large backlog.
            self._await_slice()

    def silent_since(self) -> float:
        """Return the monotonic time of the last write, by Python or native code."""
        if self._handed_over and self._fast_path is not None:
            self._last_write_s = max(self._last_write_s, self._fast_path.last_write_s())
        return self._last_write_s

    def break_silence(self) -> None:
        """Write a comment, or let the task do it with the head."""
        self._last_write_s = _now_s()
        self._take_back()
        if not self.started:
            self._pending = self._pending or self._silence
            self._wake()
        elif not (self._writer.paused or self.in_event):
            self._writer.write(self._silence)
            # Taking the stream back may have made new output available.
            self._on_ready()
