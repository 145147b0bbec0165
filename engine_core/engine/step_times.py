"""How long do steps take, and how long has the oldest one in flight taken, compared with what is expected?

A step begins when it is planned or, if others are in flight, when the one before it ends. Nothing is
predicted before somebody asks: a steady decode step costs a subtraction and an append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.pacing.step_costs import StepCosts

NUM_RECENT = 32


class StepTimes:
    """Times of steps on the engine's clock; used by its thread.

    Attributes:
        begin_s: when the oldest step in flight began; without one, when the last one ended.

    Args:
        in_flight: planned steps whose output has not been applied, the oldest first.
        costs: predicts how long a step takes.
        config: knows the stages of the pipeline, all of which a step passes, and what a move takes.
        now_s: the time.
    """

    def __init__(
        self, in_flight: Sequence[PlannedStep], costs: StepCosts, config: SchedulerConfig, now_s: float
    ) -> None:
        self._in_flight = in_flight
        self._costs = costs
        self._num_stages = config.num_stages
        self._move_block_s = config.move_block_ns / 1e9
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)
        self.begin_s = now_s

    def begin(self, now_s: float) -> None:
        """Note that a step was planned while none was in flight."""
        self.begin_s = now_s

    def end(self, now_s: float) -> None:
        """Note that the oldest step has ended."""
        self._recent.append(now_s - self.begin_s)
        self.begin_s = now_s

    def discount(self, pause_s: float) -> None:
        """Leave out a time in which the engine itself stood still."""
        self.begin_s += pause_s

    @property
    def oldest_step(self) -> int | None:
        """The number of the oldest step in flight, None without one."""
        return self._in_flight[0].step if self._in_flight else None

    def expected_s(self) -> float | None:
        """Return the seconds that the oldest step in flight should take; None while too little is known."""
        if not self._in_flight:
            return None
        step = self._in_flight[0]
        seconds = self._costs.step_s(step.packed_num_tokens, step.num_computed_tokens)
        if seconds is None:
            return None
        # The costs leave moves out: how many a step makes says nothing of the next one.
        return (seconds + step.num_moves * self._move_block_s) * self._num_stages

    def median_s(self) -> float:
        """Return the median time of recent steps; 0 before there were any."""
        return median(self._recent) if self._recent else 0.0
