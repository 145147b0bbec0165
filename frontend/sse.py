"""A server-sent event stream: starts at the first event, keeps idle links alive, ends with [DONE]."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine_core.errors import SplitServeError
from frontend.disconnect import ClientGoneError, ClientWatch
from frontend.errors_http import HttpError, error_body, error_response
from frontend.event_log import log_event, logger
from frontend.limits import EndReason, OpenRequest

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"
# How long a client may take to read the last words of a stream that ends for our reasons.
_LAST_WORDS_S = 1.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_encode = msgspec.json.Encoder().encode


def event(data: bytes) -> bytes:
    """Frame one JSON text as an event."""
    return b"data: %s\n\n" % data


class EventStream(Response):
    """Sends what `source` yields, whole events in bytes.

    Until the first event nothing is sent, so that a refusal still gets its own status; a stream that waits
    longer than the keep-alive interval is opened with a comment instead. An error later becomes one event. A
    client that hangs up closes `source` at once.
    """

    def __init__(self, source: AsyncGenerator[bytes, None], keep_alive_s: float) -> None:
        self.background = None
        self.status_code = 200
        self._source = source
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the stream."""
        writer = _Writer(send)
        try:
            async with contextlib.aclosing(self._source), ClientWatch(receive):
                await self._stream(writer)
        except ClientGoneError:
            scope["state"]["log"]["client_gone"] = True
            return
        except asyncio.CancelledError:
            if not await _say_goodbye(scope, writer):
                raise
        except Exception as error:
            _log(error)
            if not writer.started:
                await error_response(error)(scope, receive, send)
                return
            await writer.write(event(_encode(error_body(error)[1])))
        await writer.finish()

    async def _stream(self, writer: _Writer) -> None:
        first = asyncio.ensure_future(anext(self._source))
        try:
            await asyncio.wait({first}, timeout=self._keep_alive_s or None)
            if not first.done():
                await writer.write(_KEEP_ALIVE)
                keep_alive = asyncio.create_task(self._keep_alive(writer))
                try:
                    await asyncio.wait({first})
                finally:
                    keep_alive.cancel()
        finally:
            await _end(first)
            # A client may hang up just as the first step fails: nobody asks for that error then.
            if not first.cancelled():
                first.exception()
        await writer.write(first.result())
        await self._rest(writer)

    async def _rest(self, writer: _Writer) -> None:
        keep_alive = asyncio.create_task(self._keep_alive(writer)) if self._keep_alive_s else None
        try:
            async for data in self._source:
                await writer.write(data)
        finally:
            if keep_alive is not None:
                keep_alive.cancel()

    async def _keep_alive(self, writer: _Writer) -> None:
        while True:
            idle_s = time.monotonic() - writer.last_write
            if idle_s >= self._keep_alive_s:
                await writer.write(_KEEP_ALIVE)
                idle_s = 0.0
            await asyncio.sleep(self._keep_alive_s - idle_s)


async def _end(step: asyncio.Future[bytes]) -> None:
    """End a step of the source: it cannot be closed while one runs, however often this task is cancelled."""
    step.cancel()
    while not step.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({step})


class _Writer:
    """Starts the response with the first write and knows when it wrote last."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.last_write = 0.0

    async def write(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        self.last_write = time.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": DONE, "more_body": False})


async def _say_goodbye(scope: Scope, writer: _Writer) -> bool:
    """Tell a client that is cut off by our shutdown; False if this is another cancellation."""
    request: OpenRequest | None = scope["state"].get("open_request")
    if request is None or request.end_reason is not EndReason.SHUTDOWN or not writer.started:
        return False
    request.task.uncancel()
    error = HttpError(503, "shutting_down", "shutdown timeout passed")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_S):
            await writer.write(event(_encode(error_body(error)[1])))
    return True


def _log(error: Exception) -> None:
    if isinstance(error, SplitServeError):
        log_event("stream_error", {"code": error.code, "status": error.status, "detail": str(error)})
    else:
        logger.error("unhandled_error in a stream\n%s", "".join(traceback.format_exception(error)))
