"""Writes the body of one response straight to its connection, wherever new data comes from.

ASGI's send() is a coroutine: each piece costs a task switch, a dict and one call per layer. Here the head and
the end of a response go through ASGI as always, and the pieces between them do not. The HTTP protocol offers
this as an extension of the request's scope; the other layers learn from scope["state"] what was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# scope["extensions"] key; its value, called with on_change, makes the BodyWriter of the current request.
BODY_EXTENSION = "splitserve.body"
# scope["state"] key: number of body bytes written this way.
BODY_BYTES_STATE = "body_writer_bytes"


class BodyWriter:
    """The body of a response of unknown length; used between its head and its last piece.

    The connection's buffer also accepts writes while `paused`, so the caller must hold back and continue when
    on_change() is called.

    Attributes:
        paused: more bytes than the high-water mark (64 KiB) are waiting for the client to read.
        lost: the connection has ended; nothing more is written.
        half_closed: the client sends no more, and only a write can tell whether it still reads.
        num_bytes: body bytes written so far.
    """

    __slots__ = (
        "_chunked",
        "_fd",
        "_on_change",
        "_transport",
        "_write",
        "half_closed",
        "lost",
        "num_bytes",
        "paused",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        on_change: Callable[[], None],
        *,
        paused: bool,
        chunked: bool = True,
    ) -> None:
        """Start writing a body.

        Args:
            transport: the connection's transport.
            on_change: called by the event loop after paused, lost or half_closed has changed.
            paused: whether the connection's buffer is over its high-water mark now.
            chunked: each piece is a chunk; False if the body ends with the connection.
        """
        self._transport = transport
        self._write = transport.write
        self._fd: int | None = None
        self._on_change = on_change
        self._chunked = chunked
        self.paused = paused
        self.half_closed = False
        self.lost = transport.is_closing()
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        """Send a piece, at least one byte."""
        if self.lost:
            return
        size = len(data)
        self.num_bytes += size
        self._write(b"%x\r\n%b\r\n" % (size, data) if self._chunked else data)

    def free_fd(self) -> int | None:
        """Return the socket if bytes written to it directly would arrive in order and unchanged.

        None while anything is waiting in the connection's buffer, while it is closing, and always under TLS
        or without chunks. Direct writes must stop before write() is called and when on_change() reports that
        the connection is lost.
        """
        transport = self._transport
        if (
            not self._chunked
            or self.lost
            or self.paused
            or transport.is_closing()
            or transport.get_write_buffer_size()
        ):
            return None
        if self._fd is None:
            encrypted = transport.get_extra_info("sslcontext") is not None
            self._fd = -1 if encrypted else transport.get_extra_info("socket").fileno()
        return self._fd if self._fd >= 0 else None

    def add_relayed(self, num_bytes: int, unsent: bytes) -> None:
        """Count what was written directly to the socket, and write the rest of it.

        Args:
            num_bytes: number of body bytes, including the unsent ones.
            unsent: the bytes that are not yet written, with their framing.
        """
        self.num_bytes += num_bytes
        if unsent and not self.lost:
            self._write(unsent)

    def set_paused(self, paused: bool) -> None:
        """The connection's buffer is over its high-water mark, or below the low one again."""
        self.paused = paused
        self._on_change()

    def half_close(self) -> None:
        """The client sends no more."""
        self.half_closed = True
        self._on_change()

    def lose(self) -> None:
        """The connection has ended."""
        self.lost = True
        self._on_change()

    def close(self) -> None:
        """Call on_change() no more."""
        self._on_change = _ignore


def _ignore() -> None:
    pass
