"""Signals as something to poll: a descriptor becomes readable, and the loop asks which signals came."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Sequence
from types import FrameType


class SignalInbox:
    """Catches signals for a poll loop; made and used in the main thread, one per process."""

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # The handler does nothing: the number is written to the descriptor before it runs.
        self._previous = {number: signal.signal(number, _ignore) for number in signals}
        self._wanted = frozenset(signals)
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Return the descriptor to poll for input."""
        return self._reader.fileno()

    def take(self) -> list[signal.Signals]:
        """Return the signals that came since the last call, oldest first."""
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(number) for number in self._reader.recv(256) if number in self._wanted]
        return []

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
