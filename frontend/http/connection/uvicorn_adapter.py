"""All that this package takes from uvicorn beyond its documentation; nothing else names it.

Documented are `uvicorn.Config`, `uvicorn.Server`, and that `Config(http=...)` takes a protocol class. The
classes that uvicorn's own protocol consists of are not, so any minor version may change them: pyproject.toml
allows those that were tested, and test_uvicorn_adapter.py says which name is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

__all__ = ["Exchange", "ServerState", "UvicornProtocol", "UvicornServer"]


class Exchange:
    """A request whose head was read, and its response: uvicorn's cycle."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def http_version(self) -> str:
        """Such as "1.1"."""
        return self._cycle.scope["http_version"]

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Of the request; names are in lower case."""
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
        """Whether the head of the response was sent."""
        return self._cycle.response_started

    @property
    def is_complete(self) -> bool:
        """Whether the response was sent."""
        return self._cycle.response_complete

    def close_after(self) -> None:
        """Close the connection after the response."""
        self._cycle.keep_alive = False

    def wake_reader(self) -> None:
        """Let the application, if it waits for more of the body, receive what is there."""
        self._cycle.message_event.set()

    def disconnect(self) -> None:
        """Let the application receive that the client has left."""
        self._cycle.disconnected = True
        self._cycle.message_event.set()

    def send_unframed(self) -> None:
        """Send the body without chunks; expect_piece() comes before each of its pieces."""
        self._cycle.chunked_encoding = False

    def expect_piece(self, num_bytes: int) -> None:
        """Take the next piece of an unframed body for all that is left of it."""
        self._cycle.expected_content_length = num_bytes

    def is_same_as(self, other: Exchange | None) -> bool:
        """Whether both are one request."""
        return other is not None and self._cycle is other._cycle


class UvicornProtocol(HttpToolsProtocol):
    """One HTTP connection by uvicorn.

    Beside what is declared here its subclass uses uvicorn's transport, loop, parser and headers (of the last
    request), and extends the callbacks of asyncio.Protocol and of httptools' parser, on_response_complete()
    and shutdown().

    Attributes:
        running: the exchange whose application runs, or ran last.
    """

    running: Exchange | None = None

    @property
    def last_read(self) -> Exchange | None:
        """The exchange whose head was read last; others may wait before it."""
        # The annotation of uvicorn leaves out that there is none at first.
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return None if cycle is None else Exchange(cycle)

    @property
    def num_pipelined(self) -> int:
        """How many requests were read and wait for the responses before theirs."""
        return len(self.pipeline)

    @property
    def client_host(self) -> str | None:
        """The client's address; None on a Unix socket."""
        return self.client[0] if self.client else None

    @property
    def is_encrypted(self) -> bool:
        """Whether this is TLS."""
        return self.scheme == "https"

    @property
    def is_write_paused(self) -> bool:
        """Whether the transport's buffer is over its high-water mark."""
        return self.flow.write_paused

    def drop_pipelined(self) -> None:
        """Forget the requests that wait."""
        self.pipeline.clear()

    def stop_idle_timer(self) -> None:
        """End the time after which a connection without a request is closed."""
        self._unset_keepalive_if_required()

    def set_extensions(self, extensions: dict[str, Callable[..., object]]) -> None:
        """Give the request whose head is being read what its application may call in this process."""
        # ASGI types extensions as plain data.
        self.scope["extensions"] = cast(Any, extensions)

    def wrap_app(self, exchange: Exchange, app: ASGIApp) -> ASGIApp:
        """Return what answers an exchange that starts now; a subclass may wrap the application."""
        return app

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = Exchange(cycle)
        super()._start_asgi_task(cycle, cast(Any, self.wrap_app(self.running, app)))


class Listener(Protocol):
    """What uvicorn calls of what accepts its connections, at its end."""

    def close(self) -> None:
        """Accept no more."""

    async def wait_closed(self) -> None:
        """Return when that is done."""


class UvicornServer(uvicorn.Server):
    """uvicorn's server; a subclass extends startup(), shutdown(), handle_exit() and sets the exit flags."""

    def add_listener(self, listener: Listener) -> None:
        """Close a listener as uvicorn closes those that it has made itself."""
        self.servers.append(cast(Any, listener))

    def make_connection(self) -> asyncio.Protocol:
        """Return the protocol of a connection that somebody else has accepted."""
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def cut_connections(self) -> None:
        """Close every connection at once, whatever is in progress."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def end_app(self) -> None:
        """Let the application end what it began at the start."""
        await self.lifespan.shutdown()
