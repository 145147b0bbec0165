"""Has the start of workers come to a standstill? They tell of each stage, and of the weights as they come.

Only time for which the engine itself was awake counts: what the workers sent meanwhile is read first.
"""

from __future__ import annotations

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import WorkerError

# The loop looks at least this often while workers start; of a longer round no more than PAUSE_S counts.
LOOK_S = 0.5
PAUSE_S = 1.0


class StartWatch:
    """Watches workers that start; owned by the busy loop's thread.

    Args:
        limit_s: how long they may say nothing.
        clock: that of the engine.
    """

    def __init__(self, limit_s: float, clock: Clock) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._silent_s = 0.0
        self._last_look_s = clock.monotonic()

    def heard(self) -> None:
        """Note that they have said something, or are being started."""
        self._silent_s = 0.0
        self._last_look_s = self._clock.monotonic()

    def look(self, stage: str) -> None:
        """Look after everything that they have sent was taken in; at least every LOOK_S while they start.

        Args:
            stage: of the start.

        Raises:
            WorkerError: they have been silent for too long.
        """
        now_s = self._clock.monotonic()
        self._silent_s += min(now_s - self._last_look_s, PAUSE_S)
        self._last_look_s = now_s
        if self._silent_s >= self._limit_s:
            raise WorkerError(
                f"workers made no progress for {self._limit_s:g} s while {stage} (--load-timeout)"
            )
