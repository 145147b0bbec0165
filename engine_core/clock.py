"""Where time comes from: the process's monotonic clock, or one that tests and the simulator turn by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of monotonic seconds; wall-clock jumps never reach the engine."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        """Return time.monotonic()."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def monotonic(self) -> float:
        """Return the seconds set so far."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Go forward by seconds >= 0."""
        assert seconds >= 0, "a monotonic clock cannot go back"
        self._now_s += seconds
