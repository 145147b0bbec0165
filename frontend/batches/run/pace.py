"""How many lines of batches may run at once, so that requests of clients keep their latency?

while                                             lines in flight
nobody else is served                             up to the limit
a request of a client is open, or one waits       up to a quarter of it, at least one
  for a row of an engine

The engines are told the lowest priority, too, which counts under the policies "priority" and "fair".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

# What else happens is not told; lines that wait look again.
_LOOK_S = 0.05
_BUSY_PART = 4


class Pace:
    """Lets lines begin; belongs to the event loop.

    Attributes:
        num_running: lines in flight.
    """

    def __init__(self, max_running: int, is_busy: Callable[[], bool]) -> None:
        """Begin without lines.

        Args:
            max_running: limit of lines in flight.
            is_busy: whether somebody else is served or waits.
        """
        self.num_running = 0
        self._max_running = max_running
        self._is_busy = is_busy
        # One at a time, in their order: so batches take turns.
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return max(1, self._max_running // _BUSY_PART) if self._is_busy() else self._max_running

    async def enter(self) -> None:
        """Wait until a line may begin; leave() follows."""
        async with self._turn:
            while self.num_running >= self.limit:
                self._left.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._left.wait()
            self.num_running += 1

    def leave(self) -> None:
        """Note that a line has ended."""
        self.num_running -= 1
        self._left.set()
