"""The interfaces that an event stream needs: the source of its events, and a native fast path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from splitserve.frontend.engines.connection.token_relay import Relayed


class FastPath(Protocol):
    """Native code that writes the events of a source straight to the socket, for as long as it can."""

    def hand_over(self, fd: int) -> bool:
        """Let it write what comes next to this socket; return whether it does.

        If so, nothing may be taken or written before take_back(), which is due when on_ready is called.
        """

    def take_back(self) -> Relayed | None:
        """Return what it has done since hand_over(), None if nothing was handed over."""

    def last_write_s(self) -> float:
        """Return the monotonic time of its last event, 0 for none."""


class EventSource(Protocol):
    """The source of a stream's events; one stream opens and closes it.

    Attributes:
        finished: whether take() has returned the last event.
    """

    finished: bool

    @property
    def behind(self) -> bool:
        """Whether take() would return more now."""

    @property
    def in_event(self) -> bool:
        """Whether the last take() ended within an event, so that only its rest may follow."""

    async def open(self, on_ready: Callable[[], None]) -> None:
        """Start; on_ready is called whenever take() may return something or raise an error."""

    def fast_path(self) -> FastPath | None:
        """Return the fast path of an open source; None if its events are more than plain text."""

    def take(self) -> bytes:
        """Return a slice of what is ready, b"" for nothing; the source bounds what it holds untaken."""

    def close(self) -> None:
        """Stop what is still running; safe before open() and after the end."""
