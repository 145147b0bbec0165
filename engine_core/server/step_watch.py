"""Does the oldest step in flight take too long? Compared with what steps like it have taken.

    time since it began, as a multiple of what is expected      then
    OVERDUE_TIMES, and at least OVERDUE_S                       frontends are told that the engine stalls
    LATE_TIMES, and at least LATE_S                             the workers count as lost
    --step-timeout, whatever is expected                        the same, by the executor

Nothing is expected before the first steps have been seen: then the workers count as lost if one has been
stopped by a signal for LATE_S. A time in which the engine itself stood still, as everything does on a machine
that is suspended, is not counted: what the workers sent meanwhile is read first.
"""

from __future__ import annotations

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.engine.step_times import StepTimes
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.base import Executor

OVERDUE_TIMES = 10.0
OVERDUE_S = 1.0
LATE_TIMES = 20.0
LATE_S = 2.0
# The loop looks at least this often while steps are in flight; a longer round was a pause of the engine.
LOOK_S = 0.25
PAUSE_S = 1.0
NEVER = float("inf")


class StepWatch:
    """Watches the steps in flight; owned by the busy loop's thread.

    Args:
        executor: knows which workers owe the step, and which are stopped.
        clock: that of the engine.
    """

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._last_look_s = clock.monotonic()
        # Since when a worker has been seen stopped in a step of which nothing was expected.
        self._stopped_since_s = NEVER

    def next_due_s(self, engine: EngineCore) -> float:
        """Return the time by which look() has to be called again; inf when nothing is due."""
        return self._last_look_s + LOOK_S if engine.num_steps_in_flight else NEVER

    def look(self, engine: EngineCore) -> None:
        """Look at the oldest step, after everything that the workers have sent was taken in; once per round.

        Raises:
            WorkerError: it takes too long.
        """
        now_s = self._clock.monotonic()
        round_s, self._last_look_s = now_s - self._last_look_s, now_s
        times = engine.step_times
        if not engine.num_steps_in_flight:
            return
        if round_s > PAUSE_S and times.begin_s < now_s - LOOK_S:
            pause_s = min(round_s, now_s - times.begin_s)
            times.discount(pause_s)
            self._executor.discount(pause_s)
        if now_s - times.begin_s >= LOOK_S:
            self._check(times, now_s)

    def stalled(self, engine: EngineCore) -> str:
        """Say why no step can end at the moment; "" if one can."""
        stopped = self._executor.stopped()
        if stopped:
            return f"stopped by a signal: {stopped}"
        times = engine.step_times
        age_s = self._clock.monotonic() - times.begin_s
        if not engine.num_steps_in_flight or age_s < OVERDUE_S:
            return ""
        expected_s = times.expected_s()
        if expected_s is None or age_s < OVERDUE_TIMES * expected_s:
            return ""
        return f"step {times.oldest_step} has taken {age_s:.1f} s so far, {expected_s:.3f} s were expected"

    def _check(self, times: StepTimes, now_s: float) -> None:
        expected_s = times.expected_s()
        if expected_s is None:
            begin_s, limit_s = max(times.begin_s, self._stopped_from(now_s)), LATE_S
        else:
            begin_s, limit_s = times.begin_s, max(LATE_S, LATE_TIMES * expected_s)
        if now_s - begin_s >= limit_s:
            stopped = self._executor.stopped()
            raise WorkerError(
                f"{self._executor.owing()} did not finish step {times.oldest_step} within {limit_s:.3g} s"
                + (f"; stopped by a signal: {stopped}" if stopped else "")
            )

    def _stopped_from(self, now_s: float) -> float:
        """Return since when a worker has been stopped, as far as was seen; inf if none is."""
        self._stopped_since_s = min(self._stopped_since_s, now_s) if self._executor.stopped() else NEVER
        return self._stopped_since_s
