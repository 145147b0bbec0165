"""Runs steps in order, beginning one while the previous one is still on the device where possible.

event              none in flight     a step in flight                 a step answered but not yet applied
step that may      begin, maybe       begin, then answer and           begin, then apply
follow it          answer             apply the previous one           the previous one
any other step     begin, maybe       answer and apply, then           apply, then begin,
                   answer             begin, maybe answer              maybe answer
settle()           -                  answer                           -

When a step is applied to the batch depends on the sequence of steps alone, never on their arrival times. So
ranks that receive the same steps at different times begin each of them from the same batch.

A step may be held after its model was enqueued: its rows have masks that follow from the tokens of the step
before. It draws as soon as that one is applied, while the device is busy with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.worker.batch.step_graphs import StepHeld, StepInFlight


class BeginsSteps(Protocol):
    """Runs the steps; worker.worker.Worker implements it."""

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether a step may begin while another is still in flight."""

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput | StepInFlight | StepHeld:
        """Run one step, or leave it in flight, or ask to be told when the step before is applied."""


class StepPipeline:
    """Keeps at most one step in flight on the device; single-threaded.

    Args:
        worker: runs the steps.
        send: receives the replies, in the order of the steps.
    """

    def __init__(self, worker: BeginsSteps, send: Callable[[ModelRunnerOutput], None]) -> None:
        self._worker = worker
        self._send = send
        # The last step left in flight: until it is answered, how long the worker waited for it; and what is
        # still to be applied, without finish(), which keeps a whole KV cache alive.
        self._unanswered: tuple[StepInFlight, float] | None = None
        self._unapplied: Callable[[], None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a step is in flight on the device and not yet answered."""
        return self._unanswered is not None

    def run(self, step: SchedulerOutput, wait_s: float) -> None:
        """Begin a step, and send the replies that are ready.

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
        if isinstance(started, StepHeld):
            started = started.draw()
        if isinstance(started, StepInFlight):
            self._unanswered, self._unapplied = (started, wait_s), started.apply
        else:
            self._answer(started, wait_s)

    def settle(self) -> None:
        """Wait for the step in flight, if any, and send its reply."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None:
            step, wait_s = unanswered
            self._answer(step.finish(), wait_s)

    def finish(self) -> None:
        """Wait for the step in flight, if any, and apply it to the batch; its reply is dropped."""
        self._send = _drop
        self._apply()

    def _apply(self) -> None:
        """Answer the last step and apply its output to the batch, unless that is already done."""
        self.settle()
        unapplied, self._unapplied = self._unapplied, None
        if unapplied is not None:
            unapplied()

    def _answer(self, output: ModelRunnerOutput, wait_s: float) -> None:
        self._send(msgspec.structs.replace(output, wait_s=wait_s))


def _drop(output: ModelRunnerOutput) -> None:
    pass
