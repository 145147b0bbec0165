"""Is a client that has closed its sending half still waiting for the response?

On TCP a client that is gone looks the same: both have sent a FIN. Only sending something tells them apart, as
a client that is gone replies with a reset. So a client whose response takes long is probed once, with
something that clients skip, and its socket is checked from then on. A Unix socket shows it without a probe.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

from splitserve.frontend.http.connection.bare_answer import CONTINUE
from splitserve.frontend.http.connection.body_writer import BodyWriter
from splitserve.frontend.http.connection.takeover import TakenConnection
from splitserve.frontend.http.connection.uvicorn_adapter import Exchange

# A response that starts sooner is its own probe; a client that is gone costs this much extra engine time.
PROBE_AFTER_S = 0.2
_FIRST_LOOK_S = 0.01
_MAX_LOOK_S = 1.0


def is_gone(fd: int) -> bool:
    """Return whether the other side has closed or reset both halves of a connected stream socket."""
    poll = select.poll()
    # With no events requested, poll reports only POLLHUP and POLLERR.
    poll.register(fd, 0)
    return bool(poll.poll(0))


def probe(
    exchange: Exchange | None, body: BodyWriter | TakenConnection | None, transport: asyncio.Transport
) -> None:
    """Send a half-closed client something that it skips, if its response is not complete.

    Args:
        exchange: in progress, if there is one.
        body: of its response, if that is streamed; a connection that was taken over is not half-closed.
        transport: of the connection.
    """
    if exchange is None:
        return
    if exchange.has_started and isinstance(body, BodyWriter):
        body.half_close()
    elif not exchange.has_started and exchange.http_version != "1.0":
        transport.write(CONTINUE)


class HalfClosedWatch:
    """Watches one connection until it is cancelled or the client is found to be gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        probe: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        """Start watching.

        Args:
            loop: the connection's event loop.
            fd: its socket, which stays open until cancel().
            probe: writes something that the client skips; called once.
            on_gone: called at most once, as the last callback.
        """
        self._loop = loop
        self._fd = fd
        self._probe = probe
        self._on_gone = on_gone
        self._timer = loop.call_later(PROBE_AFTER_S, self._begin)

    def cancel(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _begin(self) -> None:
        self._probe()
        self._look(_FIRST_LOOK_S)

    def _look(self, next_s: float) -> None:
        if is_gone(self._fd):
            self._on_gone()
        else:
            self._timer = self._loop.call_later(next_s, self._look, min(2 * next_s, _MAX_LOOK_S))
