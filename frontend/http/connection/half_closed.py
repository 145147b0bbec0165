"""Does a client that has closed its sending half still wait for its answer?

On TCP one that is gone looks the same: both have sent a FIN. Only what is sent to them tells them apart, as
the first answers with a reset. So a request whose answer takes its time is probed once, with something that
clients skip, and its socket is looked at from then on. A Unix socket says it by itself.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

# Answers that begin sooner are their own probe; a client that is gone costs this much more of the engine.
PROBE_AFTER_S = 0.2
_FIRST_LOOK_S = 0.01
_MAX_LOOK_S = 1.0


def is_gone(fd: int) -> bool:
    """Tell whether the other side has closed or reset both halves of a connected stream socket."""
    poll = select.poll()
    # Without any event asked for, what is left is POLLHUP and POLLERR.
    poll.register(fd, 0)
    return bool(poll.poll(0))


class HalfClosedWatch:
    """Looks after one connection until it is cancelled or the client is found to be gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        probe: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        """Begin.

        Args:
            loop: of the connection.
            fd: its socket, open until cancel().
            probe: writes something that the client skips; called once.
            on_gone: called once, and nothing after it.
        """
        self._loop = loop
        self._fd = fd
        self._probe = probe
        self._on_gone = on_gone
        self._timer = loop.call_later(PROBE_AFTER_S, self._begin)

    def cancel(self) -> None:
        """End it."""
        self._timer.cancel()

    def _begin(self) -> None:
        self._probe()
        self._look(_FIRST_LOOK_S)

    def _look(self, next_s: float) -> None:
        if is_gone(self._fd):
            self._on_gone()
        else:
            self._timer = self._loop.call_later(next_s, self._look, min(2 * next_s, _MAX_LOOK_S))
