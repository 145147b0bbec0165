"""What an event stream needs of the source of its events, and of the fast path around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from splitserve.frontend.engines.connection.token_relay import Relayed


class FastPath(Protocol):
    """Native code that writes the events of a source straight to the socket, for as long as it can."""

    def hand_over(self, fd: int) -> bool:
        """Let it write what comes next to this socket; return whether it does.

        Then nothing may be taken or written before take_back(), which follows when on_ready is called.
        """

    def take_back(self) -> Relayed | None:
        """Return what it did since hand_over(), None if nothing was handed over."""

    def last_write_s(self) -> float:
        """Return the monotonic time of its last event, 0 for none."""


class EventSource(Protocol):
    """Where the events of a stream come from; one stream opens and closes it.

    Attributes:
        finished: whether take() has returned the last event.
    """

    finished: bool

    @property
    def behind(self) -> bool:
        """Whether take() would return more now."""

    @property
    def in_event(self) -> bool:
        """Whether the last take() ended within an event, so that nothing else may follow it."""

    async def open(self, on_ready: Callable[[], None]) -> None:
        """Begin; on_ready is called whenever take() may have something, or an error to raise."""

    def fast_path(self) -> FastPath | None:
        """Return the fast path of an open source; None if its events are more than plain text."""

    def take(self) -> bytes:
        """Return a slice of what is ready, b"" for nothing; what is not taken is held within bounds."""

    def close(self) -> None:
        """End what still runs; safe before open() and after the end."""
