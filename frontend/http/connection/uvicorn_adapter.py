"""Everything this package uses of uvicorn beyond its documented API; no other module names it.

uvicorn documents `uvicorn.Config`, `uvicorn.Server`, and that `Config(http=...)` takes a protocol class. The
classes that its own protocol consists of are not documented, so any minor version may change them:
pyproject.toml allows the tested versions, and test_uvicorn_adapter.py tells which name is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

__all__ = ["Exchange", "Extensions", "ServerState", "UvicornProtocol", "UvicornServer"]

# What a request's application may call in this process, by name.
Extensions = dict[str, Callable[..., object]]


class Exchange:
    """A request whose head has been read, and its response: uvicorn's cycle."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def http_version(self) -> str:
        """The HTTP version, such as "1.1"."""
        return self._cycle.scope["http_version"]

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The request's headers; names are in lower case."""
        return cast(Sequence[tuple[bytes, bytes]], self._cycle.scope["headers"])

    @property
    def has_unread_body(self) -> bool:
        """Whether more of the request's body is to come."""
        return self._cycle.more_body

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for "100 Continue" before it sends the body."""
        return self._cycle.waiting_for_100_continue

    @property
    def has_started(self) -> bool:
        """Whether the head of the response has been sent."""
        return self._cycle.response_started

    @property
    def is_complete(self) -> bool:
        """Whether the whole response has been sent."""
        return self._cycle.response_complete

    def close_after(self) -> None:
        """Close the connection after the response."""
        self._cycle.keep_alive = False

    def wake_reader(self) -> None:
        """Wake the application if it is waiting for more of the body."""
        self._cycle.message_event.set()

    def disconnect(self) -> None:
        """Tell the application that the client has left."""
        self._cycle.disconnected = True
        self._cycle.message_event.set()

    def send_unframed(self) -> None:
        """Send the body without chunks; call expect_piece() before each of its pieces."""
        self._cycle.chunked_encoding = False

    def expect_piece(self, num_bytes: int) -> None:
        """Treat the next piece of an unframed body as all that is left of it."""
        self._cycle.expected_content_length = num_bytes

    def is_same_as(self, other: Exchange | None) -> bool:
        """Return whether both are the same request."""
        return other is not None and self._cycle is other._cycle


class UvicornProtocol(HttpToolsProtocol):
    """One HTTP connection, as uvicorn implements it.

    Beside what is declared here its subclass uses uvicorn's transport, loop, parser and headers (of the last
    request), and extends the callbacks of asyncio.Protocol and of httptools' parser, on_response_complete()
    and shutdown().

    Attributes:
        running: the exchange whose application runs, or ran last.
    """

    running: Exchange | None = None

    @property
    def last_read(self) -> Exchange | None:
        """The exchange whose head was read last; others may be waiting before it."""
        # uvicorn's annotation omits that there is none at first.
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return None if cycle is None else Exchange(cycle)

    @property
    def num_pipelined(self) -> int:
        """Number of requests that were read and wait for earlier responses."""
        return len(self.pipeline)

    @property
    def client_host(self) -> str | None:
        """The client's address; None on a Unix socket."""
        return self.client[0] if self.client else None

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme == "https"

    @property
    def is_write_paused(self) -> bool:
        """Whether the transport's buffer is over its high-water mark."""
        return self.flow.write_paused

    def drop_pipelined(self) -> None:
        """Drop the waiting requests."""
        self.pipeline.clear()

    def stop_idle_timer(self) -> None:
        """Stop the timer that closes an idle connection."""
        self._unset_keepalive_if_required()

    def set_extensions(self, extensions: Extensions) -> None:
        """Give the request being read the extensions that its application may call in this process."""
        # ASGI types extensions as plain data.
        self.scope["extensions"] = cast(Any, extensions)

    def wrap_app(self, exchange: Exchange, app: ASGIApp) -> ASGIApp:
        """Return the application for an exchange that starts now; a subclass may wrap it."""
        return app

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = Exchange(cycle)
        super()._start_asgi_task(cycle, cast(Any, self.wrap_app(self.running, app)))


class Listener(Protocol):
    """The methods of a listener that uvicorn calls at shutdown."""

    def close(self) -> None:
        """Stop accepting."""

    async def wait_closed(self) -> None:
        """Return when it is closed."""


class UvicornServer(uvicorn.Server):
    """uvicorn's server; a subclass extends startup(), shutdown(), handle_exit() and sets the exit flags."""

    def add_listener(self, listener: Listener) -> None:
        """Have a listener closed as uvicorn closes its own."""
        self.servers.append(cast(Any, listener))

    def make_connection(self) -> asyncio.Protocol:
        """Return the protocol for a connection that was accepted elsewhere."""
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def cut_connections(self) -> None:
        """Close every connection at once, whatever is in progress."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def end_app(self) -> None:
        """Run the application's shutdown, the counterpart of its startup."""
        await self.lifespan.shutdown()
