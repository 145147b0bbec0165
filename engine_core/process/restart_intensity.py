"""How soon is a process that ended started again, and when is it given up?"""

from __future__ import annotations

from collections import deque

MAX_RESTARTS = 5
RESTART_WINDOW_S = 60.0
# The first time there is no delay: streams wait for the engine.
SECOND_DELAY_S = 0.1


class RestartIntensity:
    """The unexpected ends of one process; at most MAX_RESTARTS within RESTART_WINDOW_S are put up with."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=MAX_RESTARTS + 1)

    def count_end(self, now_s: float) -> int:
        """Count an end; return how many there have been within the window."""
        while self._ends_s and now_s - self._ends_s[0] > RESTART_WINDOW_S:
            self._ends_s.popleft()
        self._ends_s.append(now_s)
        return len(self._ends_s)

    def delay_s(self) -> float:
        """Return the seconds to wait before the next start; inf if it is to be given up."""
        num_ends = len(self._ends_s)
        if num_ends > MAX_RESTARTS:
            return float("inf")
        return SECOND_DELAY_S * 2 ** (num_ends - 2) if num_ends > 1 else 0.0

    def forget(self) -> None:
        """Forget all ends."""
        self._ends_s.clear()
