"""How soon is a process that ended started again, and when is it given up?"""

from __future__ import annotations

from collections import deque

MAX_RESTARTS = 5
RESTART_WINDOW_S = 60.0
# There is none the first time, nor after it has served: streams wait for the engine.
SECOND_DELAY_S = 0.1


class RestartIntensity:
    """The unexpected ends of one process; at most MAX_RESTARTS within RESTART_WINDOW_S are put up with."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=MAX_RESTARTS + 1)
        self._num_in_vain = 0

    def on_served(self) -> None:
        """Note that it served before it ended: nothing speaks against starting it at once."""
        self._num_in_vain = 0

    def count_end(self, now_s: float) -> int:
        """Count an end; return how many there have been within the window."""
        while self._ends_s and now_s - self._ends_s[0] > RESTART_WINDOW_S:
            self._ends_s.popleft()
        self._ends_s.append(now_s)
        self._num_in_vain += 1
        return len(self._ends_s)

    def delay_s(self) -> float:
        """Return the seconds to wait before the next start; inf if it is to be given up."""
        if len(self._ends_s) > MAX_RESTARTS:
            return float("inf")
        num_in_vain = min(self._num_in_vain, len(self._ends_s))
        return SECOND_DELAY_S * 2 ** (num_in_vain - 2) if num_in_vain > 1 else 0.0

    def forget(self) -> None:
        """Forget all ends."""
        self._ends_s.clear()
        self._num_in_vain = 0
