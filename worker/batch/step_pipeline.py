"""Answers steps in order, and begins one before the device has finished the one before it, where that may be.

event              nothing runs       a step runs on the device        it is answered, and not yet applied
step that may      begin, maybe       begin, then answer and           begin, then apply
follow it          answer             apply the one before             the one before
any other step     begin, maybe       answer and apply, then           apply, then begin,
                   answer             begin, maybe answer              maybe answer
settle()           -                  answer                           -

A step is applied to the batch at a moment that follows from the steps alone, never from when they have come.
Ranks that see the same steps at other times so begin each from the same batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.worker.batch.step_graphs import StepInFlight


class BeginsSteps(Protocol):
    """What runs the steps; worker.worker.Worker is one."""

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether a step may begin before the one that runs is finished."""

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput | StepInFlight:
        """Run one step, or leave it running."""


class StepPipeline:
    """Holds at most one step that runs on the device; one thread.

    Args:
        worker: runs the steps.
        send: takes the answers, in the order of the steps.
    """

    def __init__(self, worker: BeginsSteps, send: Callable[[ModelRunnerOutput], None]) -> None:
        self._worker = worker
        self._send = send
        # The last step that was left running: till it is answered how long the worker waited for it; and
        # what is still to be applied, without what answers it, which keeps a whole KV cache.
        self._unanswered: tuple[StepInFlight, float] | None = None
        self._unapplied: Callable[[], None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step runs on the device, and its answer is still to come."""
        return self._unanswered is not None

    def run(self, step: SchedulerOutput, wait_s: float) -> None:
        """Begin a step, and answer what is done.

        Args:
            step: to run.
            wait_s: how long the worker waited for it.

        Raises:
            WorkerError, ProtocolError, RuntimeError: as ModelRunner.begin.
        """
        if self._unapplied is not None and not self._worker.can_follow(step):
            self._apply()
        started = self._worker.begin(step)
        self._apply()
        if isinstance(started, StepInFlight):
            self._unanswered, self._unapplied = (started, wait_s), started.apply
        else:
            self._answer(started, wait_s)

    def settle(self) -> None:
        """Answer the step that runs, if there is one."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None:
            step, wait_s = unanswered
            self._answer(step.finish(), wait_s)

    def _apply(self) -> None:
        """Answer the last step and put what came of it into the batch, if that is still to be done."""
        self.settle()
        unapplied, self._unapplied = self._unapplied, None
        if unapplied is not None:
            unapplied()

    def _answer(self, output: ModelRunnerOutput, wait_s: float) -> None:
        self._send(msgspec.structs.replace(output, wait_s=wait_s))
