"""A server-sent event stream as a response: from its first event to the end that its API has, or an error."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from splitserve.engine_core.errors import SplitServeError
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.http.connection.disconnect import ClientGoneError
from splitserve.frontend.http.dialect import ErrorDetail, dialect_of, error_struct
from splitserve.frontend.http.errors import HttpError, error_body, error_response
from splitserve.frontend.http.limits import EndReason, InFlightRequest
from splitserve.frontend.http.response.event_source import EventSource
from splitserve.frontend.http.response.keep_alive import KeepAlive
from splitserve.frontend.http.response.open_stream import OpenStream
from splitserve.frontend.http.slices import SliceQueue

logger = logging.getLogger("frontend")

# How long a client may take to read the last event of a stream that this process ends.
_LAST_WORDS_S = 1.0

_encode = msgspec.json.Encoder().encode


def event(data: bytes) -> bytes:
    """Frame one JSON text as an event."""
    return b"data: %s\n\n" % data


def named_event(value: msgspec.Struct) -> bytes:
    """Frame a struct as the event of its tag's name."""
    return b"event: %s\n%s" % (str(value.__struct_config__.tag).encode(), event(_encode(value)))


class EventStream(Response):
    """Sends the events of a source.

    Nothing is sent before the first event, so that a refusal still gets its own status; a stream that waits
    longer than the keep-alive interval is opened with a comment instead. A later error becomes an event. When
    the client hangs up, the source is closed at once.
    """

    def __init__(
        self,
        source: EventSource,
        keep_alive: KeepAlive,
        slices: SliceQueue,
        failure: Callable[[ErrorDetail], bytes] | None = None,
    ) -> None:
        """Prepare.

        Args:
            source: of the events.
            keep_alive: breaks silences.
            slices: of the process.
            failure: makes the events that tell of an error; None for the error event of the API.
        """
        self.background = None
        self._failure = failure
        self.status_code = 200
        self._source = source
        self._keep_alive = keep_alive
        self._slices = slices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the stream."""
        stream = OpenStream(self._source, self._keep_alive, self._slices, scope, send)
        last = b""
        try:
            try:
                await stream.run()
            finally:
                stream.close()
        except ClientGoneError:
            scope["state"]["log"]["client_gone"] = True
            return
        except asyncio.CancelledError:
            if not await self._say_goodbye(scope, send, stream):
                raise
        except Exception as error:
            if stream.in_event:
                # The event that was started cannot be completed; the missing end tells the client.
                raise
            _log(error)
            if not stream.started:
                await error_response(error)(scope, receive, send)
                return
            last = self._error_event(scope, error)
        await send(_body(last + dialect_of(scope).end, more=False))

    def _error_event(self, scope: Scope, error: Exception) -> bytes:
        status, body = error_body(error)
        if self._failure is not None:
            return self._failure(body.error)
        return dialect_of(scope).error_prefix + event(_encode(error_struct(scope, status, body.error)))

    async def _say_goodbye(self, scope: Scope, send: Send, stream: OpenStream) -> bool:
        """Tell a client that our shutdown cuts it off; False if this is another cancellation."""
        request: InFlightRequest | None = scope["state"].get("open_request")
        if request is None or request.end_reason is not EndReason.SHUTDOWN:
            return False
        if stream.in_event or not stream.started:
            return False
        request.task.uncancel()
        error = HttpError(503, "shutting_down", "shutdown timeout passed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await send(_body(self._error_event(scope, error), more=True))
        return True


def _body(data: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _log(error: Exception) -> None:
    if isinstance(error, SplitServeError):
        log_event(
            logger, logging.INFO, "stream_error", code=error.code, status=error.status, detail=str(error)
        )
    else:
        log_event(logger, logging.ERROR, "unhandled_error", error)
