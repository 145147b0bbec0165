"""How does a process do in advance all that it does before it serves? It then waits until it is needed.

whoever started it                  the process
starts it with one end of a line    imports, reads its configuration
news(): "prepared" <--------------  tells that it is prepared, waits
take() --------------------------->  serves; from now on it is a process like any other
close(), or it ended -- end of file  ends
"""

from __future__ import annotations

import contextlib
import enum
import signal
import socket
from collections.abc import Callable

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.children import Child

_PREPARED, _GO = b"p", b"g"
_KILL_S = 5.0


class StandbyNews(enum.Enum):
    """What a waiting process may tell."""

    PREPARED = 0
    ENDED = 1


class StandbyProcess:
    """A child that waits, or prepares to; belongs to the main thread of the process that started it."""

    def __init__(self, start: Callable[[int], Child]) -> None:
        """Start it.

        Args:
            start: starts the command; takes the descriptor that the child inherits as its end of the line.

        Raises:
            OSError: the system refuses.
        """
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        with theirs:
            try:
                self.child = start(theirs.fileno())
            except BaseException:
                self._line.close()
                raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are news."""
        return self._line.fileno()

    def news(self) -> StandbyNews | None:
        """Return what the process told; never blocks."""
        try:
            told = self._line.recv(1)
        except BlockingIOError:
            return None
        except OSError:
            told = b""
        return StandbyNews.PREPARED if told else StandbyNews.ENDED

    def take(self) -> Child | None:
        """Let it serve, as soon as it is prepared; None if it has ended."""
        with contextlib.suppress(OSError):
            self._line.send(_GO)
            if self.child.poll() is None:
                self._line.close()
                return self.child
        self.close()
        return None

    def close(self, patience_s: float = 0.0) -> int:
        """End it; return the exit code, -N after signal N.

        Args:
            patience_s: how long it may take to end by itself, before it is killed.
        """
        self._line.close()
        if self.child.wait(patience_s) is None:
            self.child.signal(signal.SIGKILL)
        code = self.child.wait(_KILL_S)
        self.child.close()
        return -signal.SIGKILL if code is None else code


def wait_until_needed(fd: int) -> bool:
    """Tell that this process is prepared, and wait; False if it is not needed any more.

    Args:
        fd: its end of the line.

    Raises:
        ConfigError: the descriptor is something else.
    """
    try:
        line = socket.socket(fileno=fd)
    except OSError as error:
        raise ConfigError(f"descriptor {fd} cannot be used: {error.strerror}") from None
    with line:
        # Whoever needs it already has told so, and listens no more.
        with contextlib.suppress(OSError):
            line.send(_PREPARED)
        try:
            return line.recv(1) == _GO
        except OSError:
            return False
