"""Calls the owner of open sequences when it has something to do, on the event loop."""

from __future__ import annotations

import asyncio

from splitserve.frontend.engines.failover.owner import Failover


class FailoverDriver:
    """One timer, which runs only while something waits; belongs to the event loop that called start()."""

    def __init__(self, failover: Failover) -> None:
        self._failover = failover
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._is_soon = False

    def start(self) -> None:
        """Begin to listen to the owner."""
        self._loop = asyncio.get_running_loop()
        self._failover.on_work = self.kick

    def kick(self) -> None:
        """Call the owner in the next turn of the loop."""
        if self._loop is None or self._is_soon:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_soon = True
        self._timer = self._loop.call_soon(self._run)

    def close(self) -> None:
        """Stop; the owner is called no more."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer, self._is_soon = None, False
        delay_s = self._failover.pump()
        if self._loop is None or self._timer is not None or delay_s is None:
            return
        if delay_s == 0:
            self.kick()
        else:
            self._timer = self._loop.call_later(delay_s, self._run)
