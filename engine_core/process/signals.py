"""How a poll loop learns of SIGTERM, SIGINT, SIGHUP and others: a descriptor becomes readable."""

from __future__ import annotations

import contextlib
import signal
import socket
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalInbox:
    """Catches these signals for a poll loop; created and used in the main thread, one per process."""

    def __init__(self, *others: signal.Signals, takes_ignored: bool = False) -> None:
        """Take over SIGTERM, SIGINT, SIGHUP and others.

        Args:
            others: signals to take beside these.
            takes_ignored: take SIGHUP even if it was ignored; the caller distinguishes what it means.
        """
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # Under nohup the process must survive a hang-up of the terminal.
        ignored = frozenset() if takes_ignored else _ignored(signal.SIGHUP)
        self._wanted = frozenset((*ENDING, *others)) - ignored
        # The descriptor first: Python writes each signal's number to it; the handlers do nothing.
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, _ignore) for number in self._wanted}

    def fileno(self) -> int:
        """Return the descriptor to poll for input."""
        return self._reader.fileno()

    def take(self) -> list[signal.Signals]:
        """Return the signals received since the last call, oldest first."""
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(number) for number in self._reader.recv(256) if number in self._wanted]
        return []

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._reader.close()
        self._writer.close()


def _ignored(number: signal.Signals) -> frozenset[signal.Signals]:
    return frozenset((number,) if signal.getsignal(number) is signal.SIG_IGN else ())


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
