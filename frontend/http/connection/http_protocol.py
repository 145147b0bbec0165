"""uvicorn's HTTP protocol with the limits it lacks: header size and time, connections, pipelined requests.

phase of a connection           ends by                           if not in time
IDLE, no request in progress    first byte                        closed (keep-alive time, header time, or
                                                                  0.1 s from the beginning of a drain)
HEADERS                         the blank line                    408
in progress (body, response)    the end of the response           frontend.http.limits

Input that cannot be parsed ends the reading. The requests before it are served, then it is refused, then the
connection is closed; for a body that cannot be parsed, the refusal is the response of its own request.

A request that asks for another protocol may be given the connection (frontend.http.connection.takeover); from
then on nothing is parsed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httptools
from starlette.types import ASGIApp
from uvicorn import Config

from splitserve.frontend.http.connection.bare_answer import refusal
from splitserve.frontend.http.connection.body_writer import BODY_EXTENSION, BodyWriter
from splitserve.frontend.http.connection.connection_limits import ConnectionLimits, ConnectionPlace
from splitserve.frontend.http.connection.cycle_apps import completed
from splitserve.frontend.http.connection.half_closed import HalfClosedWatch, is_gone, probe
from splitserve.frontend.http.connection.head_size import HeadSize, head_too_large
from splitserve.frontend.http.connection.http_head import bad_http, check_head
from splitserve.frontend.http.connection.takeover import TAKE_EXTENSION, Owner, TakenConnection
from splitserve.frontend.http.connection.upgrade_body import body_parser, has_body
from splitserve.frontend.http.connection.uvicorn_adapter import (
    Exchange,
    Extensions,
    ServerState,
    UvicornProtocol,
)
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.http.limits import ABORT_EXTENSION

MAX_PIPELINED = 8
# Requests already on their way when a drain starts arrive within this; then idle connections are closed.
DRAIN_GRACE_S = 0.1
# A refused client's data is still read for this long, so that it gets the refusal.
LINGER_S = 1.0


class BoundedHttpProtocol(UvicornProtocol):
    """One HTTP connection within the limits; refusals have the usual error body."""

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
        self._place: ConnectionPlace | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head = HeadSize()
        self._refusal: HttpError | None = None
        self._half_closed: HalfClosedWatch | None = None
        # What takes the data that is sent: a streamed body, or another protocol.
        self._body: BodyWriter | TakenConnection | None = None
        self._taken: TakenConnection | None = None
        self._draining = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and start the timer for its first request."""
        super().connection_made(transport)
        self._place = ConnectionPlace(self._limits, self.client_host or "local")
        if self._place.is_free:
            self._arm_timer()
        else:
            self._turn_away(self._place, HttpError(503, "overloaded", "too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        if self._place is not None:
            self._place.leave()
        self._cancel_timer()
        if self._half_closed is not None:
            self._half_closed.cancel()
        self.drop_pipelined()
        if self.running is not None and not self.running.is_complete:
            self.running.disconnect()
        super().connection_lost(exc)
        # After a reset uvicorn leaves this running, and with it all of the connection for another 75 s.
        self.stop_idle_timer()
        if self._body is not None:
            self._body.lose()

    def pause_writing(self) -> None:
        """Hold a streamed body back: the client is not reading."""
        super().pause_writing()
        if self._body is not None:
            self._body.set_paused(True)

    def resume_writing(self) -> None:
        """Let a streamed body continue."""
        super().resume_writing()
        if self._body is not None:
            self._body.set_paused(False)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Serve what the client requested before it closed its sending half; False closes the connection."""
        fd = self.transport.get_extra_info("socket").fileno()
        last = self._in_progress()
        # TLS connections cannot be half-closed.
        if self._taken or self.is_encrypted or last is None or last.has_unread_body or is_gone(fd):
            return False
        if self._refusal is None:
            last.close_after()
        if self._half_closed is None:
            self._half_closed = HalfClosedWatch(self.loop, fd, self._probe, self.transport.abort)
        return True

    def data_received(self, data: bytes) -> None:
        """Parse data; time and size of headers count from their first byte to the blank line."""
        if self._taken is not None:
            self._taken.owner.on_data(data)
            return
        if self._refusal is not None:
            return
        self.stop_idle_timer()
        self._parse(data)
        if self._refusal is not None or self.transport.is_closing():
            return
        if self._head.is_open and not self._head.add_unfinished(len(data)):
            self._refuse(head_too_large())
            return
        if self._head.is_open or not self._in_progress():
            self._arm_timer()

    def on_message_begin(self) -> None:
        """Start counting the headers of one request."""
        super().on_message_begin()
        self._head.begin()
        own: Extensions = {BODY_EXTENSION: self._write_body, TAKE_EXTENSION: self._take}
        self.set_extensions({ABORT_EXTENSION: self.transport.abort, **own})

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        if not self._head.add(len(url)):
            raise self._abandon(head_too_large())
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count one header; a trailer is not a header, whatever its name."""
        num_headers = len(self.headers) + 1 if self._head.is_open else 0
        if not self._head.add(len(name) + len(value), num_headers):
            raise self._abandon(head_too_large())
        if self._head.is_open:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the application."""
        self._head.end()
        self._cancel_timer()
        if self.num_pipelined >= MAX_PIPELINED:
            raise self._abandon(bad_http("Too many pipelined requests."))
        try:
            check_head(self.parser.get_http_version(), self.headers)
        except HttpError as error:
            raise self._abandon(error) from None
        super().on_headers_complete()
        if self._draining and self.last_read is not None:
            self.last_read.close_after()

    def on_message_complete(self) -> None:
        """End the request; if it asks for another protocol, its body is still to come."""
        if not (self.parser.should_upgrade() and has_body(self.headers)):
            super().on_message_complete()

    def shutdown(self) -> None:
        """Start to drain: serve requests in progress or on their way, then close the connection.

        Closing an idle connection at once would reset it while a request was sent but not yet read.
        """
        self._draining = True
        if self._taken is not None:
            self._taken.owner.on_drain()
        if self._in_progress():
            super().shutdown()
        else:
            self.loop.call_later(DRAIN_GRACE_S, self._close_if_idle)

    def on_response_complete(self) -> None:
        """Release the body; then serve the next pipelined request, or refuse what could not be parsed."""
        self._body = None
        super().on_response_complete()
        if self._refusal is not None and not self._in_progress() and not self.transport.is_closing():
            self._refuse_now(self._refusal)

    def wrap_app(self, exchange: Exchange, app: ASGIApp) -> ASGIApp:
        """Return the application, wrapped to do what uvicorn leaves out if the request needs it."""
        return completed(
            app, exchange, lambda: self._refusal if exchange.is_same_as(self.last_read) else None
        )

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # No other protocol is supported, so parsing continues.
                data = data[upgrade.args[0] :]
                if has_body(self.headers):
                    self.parser = body_parser(self, self.headers)
            except httptools.HttpParserError:
                self._refuse(self._refusal or bad_http("The request is not valid HTTP/1.1."))
                return

    def _probe(self) -> None:
        probe(self.running, self._body, self.transport)

    def _write_body(self, on_change: Callable[[], None]) -> BodyWriter:
        """Return the writer of the response in progress; there is one at a time."""
        chunked = self.running is None or self.running.http_version != "1.0"
        paused = self.is_write_paused
        self._body = writer = BodyWriter(self.transport, on_change, paused=paused, chunked=chunked)
        return writer

    def _take(self, owner: Owner) -> TakenConnection:
        """Give the connection to an owner that speaks another protocol."""
        self._body = self._taken = TakenConnection(self.transport, owner, paused=self.is_write_paused)
        return self._taken

    def _in_progress(self) -> Exchange | None:
        """Return the last request read if its response is not complete."""
        last = self.last_read
        return last if last is not None and not last.is_complete else None

    def _arm_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.header_timeout_s, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        # Headers that have started have their own timer.
        if not self._head.is_open and not self._in_progress():
            self.transport.close()

    def _on_timer(self) -> None:
        self._timer = None
        if self._head.is_open:
            timeout_s = self._limits.header_timeout_s
            self._refuse(
                HttpError(408, "request_timeout", f"The headers did not arrive within {timeout_s:g} s.")
            )
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: HttpError) -> None:
        """Stop reading; send the reason when the requests read before have been served."""
        self._refusal = error
        last = self.last_read
        if last is not None and last.has_unread_body:
            # The fault is in the body of a request that has its own response.
            last.close_after()
            last.wake_reader()
            if last.is_complete:
                self.transport.close()
        elif not self._in_progress():
            self._refuse_now(error)

    def _turn_away(self, place: ConnectionPlace, error: HttpError) -> None:
        """Refuse a connection that is one too many; it is no longer counted, to make room for others."""
        self._refusal = error
        if place.refuse():
            self._refuse_now(error)
        else:
            self.transport.write(refusal(error))
            self.transport.close()

    def _refuse_now(self, error: HttpError) -> None:
        self.transport.write(refusal(error))
        self._cancel_timer()
        if self.transport.can_write_eof():
            # Closing with unread bytes resets the connection, and the client loses what it has not read yet.
            self.transport.write_eof()
            self._timer = self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def _abandon(self, error: HttpError) -> httptools.HttpParserCallbackError:
        # Raised in a parser callback, it ends the parsing, and _parse() finds the reason.
        self._refusal = error
        return httptools.HttpParserCallbackError(error.code)


def protocol_factory(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return a protocol class for uvicorn whose connections share one set of limits."""

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
