"""uvicorn's HTTP protocol with the limits it lacks: header size and time, connections, pipelined requests.

phase of a connection           ends by                           if not in time
IDLE, no request in progress    first byte                        closed (keep-alive time, header time, or
                                                                  0.1 s from the beginning of a drain)
HEADERS                         the blank line                    408
in progress (body, response)    the end of the response           frontend.limits
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from frontend.body_writer import BODY_EXTENSION, BodyWriter
from frontend.config import FrontendConfig
from frontend.errors_http import HttpError, error_body
from frontend.limits import ABORT_EXTENSION

MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS = 64
MAX_PIPELINED = 8
# A request that is on its way when the process begins to drain arrives within this; then idle links go.
DRAIN_GRACE_S = 0.1


class ConnectionLimits:
    """The open connections of this process, in all and per address."""

    def __init__(self, config: FrontendConfig) -> None:
        self.header_timeout_s = config.header_timeout_s
        self._max = config.max_connections
        self._max_per_address = config.max_connections_per_address
        self._open: Counter[str] = Counter()
        self._num_open = 0

    def enter(self, address: str) -> bool:
        """Count a connection; False if it is one too many. Either way leave() follows."""
        self._num_open += 1
        self._open[address] += 1
        too_many_there = self._max_per_address and self._open[address] > self._max_per_address
        return self._num_open <= self._max and not too_many_there

    def leave(self, address: str) -> None:
        """Forget a connection."""
        self._num_open -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


class BoundedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection within the limits; refusals have the body of every other error."""

    def __init__(
        self,
        limits: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._address = ""
        self._timer: asyncio.TimerHandle | None = None
        self._in_headers = False
        self._num_header_bytes = 0
        self._refusal: HttpError | None = None
        self._body: BodyWriter | None = None
        self._draining = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and start the time it has for its first request."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else "local"
        if self._limits.enter(self._address):
            self._arm_timer()
        else:
            self._refuse(HttpError(503, "overloaded", "too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._limits.leave(self._address)
        self._cancel_timer()
        super().connection_lost(exc)
        if self._body is not None:
            self._body.lose()

    def pause_writing(self) -> None:
        """Hold a streamed body back: the client does not read what it has got."""
        super().pause_writing()
        if self._body is not None:
            self._body.set_paused(True)

    def resume_writing(self) -> None:
        """Let a streamed body go on."""
        super().resume_writing()
        if self._body is not None:
            self._body.set_paused(False)

    def data_received(self, data: bytes) -> None:
        """Parse; time and size of headers count from their first byte to the blank line."""
        if self._refusal is not None:
            return
        super().data_received(data)
        if self._refusal is not None or self.transport.is_closing():
            return
        if self._in_headers:
            # A single header that never ends is not seen by on_header, so unfinished data counts as well.
            self._num_header_bytes += len(data)
            if self._num_header_bytes > 2 * MAX_HEADER_BYTES:
                self._refuse(_too_large())
                return
        if self._in_headers or not self._in_progress():
            self._arm_timer()

    def on_message_begin(self) -> None:
        """Begin to count the headers of one request."""
        super().on_message_begin()
        self._in_headers = True
        self._num_header_bytes = 0
        # ASGI types extensions as plain data; ours are functions, for this process only.
        self.scope["extensions"] = {ABORT_EXTENSION: self.transport.abort, BODY_EXTENSION: self._write_body}  # type: ignore[dict-item]

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count one header."""
        self._count(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            raise _abandon(self, _too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the application."""
        self._in_headers = False
        self._cancel_timer()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _abandon(self, HttpError(400, "bad_http", "Too many pipelined requests."))
        super().on_headers_complete()
        if self._draining:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Begin to drain: what is in progress or on its way is answered, then the connection is closed.

        Closing an idle connection at once would reset it under a request that was sent but not yet read.
        """
        self._draining = True
        if self._in_progress():
            super().shutdown()
        else:
            self.loop.call_later(DRAIN_GRACE_S, self._close_if_idle)

    def on_response_complete(self) -> None:
        """Let go of the body; pipelined requests come one after the other."""
        self._body = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused, or what one of the callbacks above did."""
        self._refuse(self._refusal or HttpError(400, "bad_http", "The request is not valid HTTP/1.1."))

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: clients must not be able to fill the log."""

    def _write_body(self, on_change: Callable[[], None]) -> BodyWriter:
        """Return the writer of the response in progress; there is one at a time."""
        self._body = BodyWriter(self.transport, on_change, paused=self.flow.write_paused)
        return self._body

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise _abandon(self, _too_large())

    def _in_progress(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _arm_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.header_timeout_s, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        # Headers that have begun have their own time.
        if not self._in_headers and not self._in_progress():
            self.transport.close()

    def _on_timer(self) -> None:
        self._timer = None
        if self._in_headers:
            timeout_s = self._limits.header_timeout_s
            self._refuse(
                HttpError(408, "request_timeout", f"The headers did not arrive within {timeout_s:g} s.")
            )
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: HttpError) -> None:
        """Answer on the bare connection and close it; if another response is on its way, only close."""
        self._refusal = error
        if self._in_progress():
            self.transport.abort()
            return
        self.transport.write(_plain_response(error))
        self.transport.close()


def _abandon(protocol: BoundedHttpProtocol, error: HttpError) -> httptools.HttpParserCallbackError:
    # Raised inside a parser callback it ends parsing, and send_400_response() finds the reason.
    protocol._refusal = error
    return httptools.HttpParserCallbackError(error.code)


def _too_large() -> HttpError:
    return HttpError(
        431,
        "headers_too_large",
        f"Headers must be at most {MAX_HEADERS} and {MAX_HEADER_BYTES} bytes in all.",
    )


def _plain_response(error: HttpError) -> bytes:
    status, body = error_body(error)
    content = msgspec.json.encode(body)
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(content)}",
        "connection: close",
    ]
    if status == 503:
        lines.append("retry-after: 1")
    return "\r\n".join([*lines, "", ""]).encode() + content


def protocol_factory(config: FrontendConfig) -> type[asyncio.Protocol]:
    """Return a protocol class for uvicorn whose connections share one set of limits."""
    limits = ConnectionLimits(config)

    class Protocol(BoundedHttpProtocol):
        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, object],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(limits, config, server_state, app_state, _loop)

    return Protocol
