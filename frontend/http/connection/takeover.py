"""A connection that speaks another protocol from now on: what its new owner gets of it, and may do."""

from __future__ import annotations

import asyncio
from typing import Protocol

# scope["extensions"] key; its value, called with the new owner, returns the TakenConnection. It is only for a
# request without a body that asks for another protocol, and is answered with status 101, which is not sent.
TAKE_EXTENSION = "splitserve.take"


class Owner(Protocol):
    """Who a connection belongs to now; its methods are called by the event loop."""

    def on_data(self, data: bytes) -> None:
        """The client has sent something."""

    def on_change(self) -> None:
        """The connection's `paused` or `lost` has changed."""

    def on_drain(self) -> None:
        """The server shuts down: the connection has to end soon."""


class TakenConnection:
    """A connection as its new owner sees it.

    Attributes:
        paused: more bytes than the high-water mark are waiting for the client to read.
        lost: the connection has ended; nothing more is written.
    """

    def __init__(self, transport: asyncio.Transport, owner: Owner, *, paused: bool) -> None:
        """Args: transport is the connection's; paused whether its buffer is over the high-water mark now."""
        self.owner = owner
        self.paused = paused
        self.lost = transport.is_closing()
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Send something, or keep it until the client reads."""
        if not self.lost:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection once all is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def set_paused(self, paused: bool) -> None:
        """The connection's buffer is over its high-water mark, or below the low one again."""
        self.paused = paused
        self.owner.on_change()

    def lose(self) -> None:
        """The connection has ended."""
        self.lost = True
        self.owner.on_change()
