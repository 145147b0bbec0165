"""Work too large for one turn of the event loop, done slice by slice in between everything else.

A large response, the backlog of a client that resumes reading, thousands of streams that end together: each
is cut into slices of about a millisecond, and one slice of all waiting work is done per turn. So such work
delays the rest of the process by one slice per turn, however much of it there is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

# Values (a token id, a logprob, a piece of text) rendered in one slice; one takes 1 to 2 us.
SLICE_VALUES = 512


class SliceQueue:
    """Calls one waiting callback per turn of the loop, first come, first served; belongs to one event loop.

    Every waiter is an open request with one slice at a time, so the limit on open requests bounds the queue.
    """

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()

    def add(self, callback: Callable[[], None]) -> None:
        """Call the callback in a turn of its own; it must not raise."""
        self._queue.append(callback)
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._run_one)

    async def turn(self) -> None:
        """Return when the caller may do one slice of its work."""
        place = asyncio.get_running_loop().create_future()
        self.add(lambda: None if place.done() else place.set_result(None))
        await place

    def _run_one(self) -> None:
        callback = self._queue.popleft()
        if self._queue:
            asyncio.get_running_loop().call_soon(self._run_one)
        callback()
