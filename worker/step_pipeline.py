"""Answers steps in order, and begins one before the device has finished the one before it, where that may be.

event                        nothing runs            a step runs on the device
step that may follow it      begin, maybe answer     begin, then finish and answer the one before
any other step               begin, maybe answer     finish and answer, then begin, maybe answer
settle(): all else           -                       finish and answer
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from worker.step_graphs import StepInFlight


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
        self._running: tuple[StepInFlight, float] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step runs on the device, and its answer is still to come."""
        return self._running is not None

    def run(self, step: SchedulerOutput, wait_s: float) -> None:
        """Begin a step, and answer what is done.

        Args:
            step: to run.
            wait_s: how long the worker waited for it.

        Raises:
            WorkerError, ProtocolError, RuntimeError: as ModelRunner.begin.
        """
        if self._running is not None and not self._worker.can_follow(step):
            self.settle()
        before, self._running = self._running, None
        started = self._worker.begin(step)
        if before is not None:
            self._finish(*before)
        if isinstance(started, StepInFlight):
            self._running = started, wait_s
        else:
            self._answer(started, wait_s)

    def settle(self) -> None:
        """Finish and answer the step that runs, if there is one."""
        running, self._running = self._running, None
        if running is not None:
            self._finish(*running)

    def _finish(self, step: StepInFlight, wait_s: float) -> None:
        self._answer(step.finish(), wait_s)

    def _answer(self, output: ModelRunnerOutput, wait_s: float) -> None:
        self._send(msgspec.structs.replace(output, wait_s=wait_s))
