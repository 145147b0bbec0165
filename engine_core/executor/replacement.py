"""How are workers replaced by others? The killed ones have to end first, which may take seconds.

state      by                       next
-          begin(wanted=True)       ending
-          begin(wanted=False)      ending, and then stopped: there are none
ending     the last has ended       -, others are started; or stopped
stopped    want()                   -, others are started
"""

from __future__ import annotations

from collections.abc import Callable

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.worker_group import WorkerGroup

# How often to look whether killed workers have ended, and for how long: a device may take seconds to free its
# memory.
_ASK_S = 0.005
_END_S = 30.0


class Replacement:
    """Owned by the executor.

    Attributes:
        is_stopped: whether no workers are wanted.

    Args:
        group: of the workers.
        clock: for the deadline.
        start: starts others.
    """

    def __init__(self, group: WorkerGroup, clock: Clock, start: Callable[[], None]) -> None:
        self._group = group
        self._clock = clock
        self._start = start
        self._killed_s: float | None = None
        self._next_ask_s = 0.0
        self.is_stopped = False

    @property
    def is_active(self) -> bool:
        """Whether there are killed workers, or none."""
        return self._killed_s is not None or self.is_stopped

    @property
    def due_s(self) -> float | None:
        """When to look; None for never."""
        return self._next_ask_s if self._killed_s is not None else None

    def begin(self, *, wanted: bool) -> None:
        """Kill all workers; others follow if they are wanted.

        Raises:
            WorkerError: they were killed before, and have not ended.
        """
        if self._killed_s is not None:
            raise WorkerError("the workers were killed, but their processes do not end")
        self.is_stopped = not wanted
        self._group.kill()
        self._killed_s = self._clock.monotonic()

    def want(self) -> None:
        """Start others, as soon as the killed ones have ended.

        Raises:
            WorkerError: they cannot be started.
        """
        self.is_stopped = False
        if self._killed_s is None:
            self._start()

    def look(self) -> bool:
        """Go on once the killed workers have ended; return whether they just have, and no others are wanted.

        Raises:
            WorkerError: they do not end, or others cannot be started.
        """
        if self._killed_s is None:
            return False
        self._group.attend()
        now_s = self._clock.monotonic()
        if self._group.have_ended():
            self._group.end(0.0)
            self._killed_s = None
            if self.is_stopped:
                return True
            self._start()
        elif now_s >= self._killed_s + _END_S:
            raise WorkerError(f"the workers were killed, but have not ended within {_END_S:g} s")
        else:
            self._next_ask_s = now_s + _ASK_S
        return False
