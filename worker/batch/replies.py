"""When does the answer to a step leave? At once, but two short steps in a row are answered together.

A message to the engine wakes libzmq's thread, then the engine, and makes it plan, send, and write to its
frontends: more work than a short step. An answer waits only while the next step is here already, and
computes as many tokens of each row: so for about one short step, and never for somebody's prefill.
"""

from __future__ import annotations

from collections.abc import Callable

from splitserve.engine_core.config import SHORT_STEP_S
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput


class Replies:
    """Answers in the order of their steps; holds at most one of them. One thread.

    Args:
        send: sends one answer.
        has_message: whether the next message of the engine is here already.
    """

    def __init__(self, send: Callable[[ModelRunnerOutput], None], has_message: Callable[[], bool]) -> None:
        self._send = send
        self._has_message = has_message
        self._held: ModelRunnerOutput | None = None
        self._num_tokens = b""

    def expect(self, step: SchedulerOutput) -> None:
        """Hear which step runs next; what is held leaves first, unless the step is like the one before."""
        if step.num_tokens != self._num_tokens or step.moves_to:
            self._num_tokens = step.num_tokens
            self.flush()

    def add(self, output: ModelRunnerOutput) -> None:
        """Send an answer now, or together with the next one."""
        if self._held is None and output.compute_s < SHORT_STEP_S and self._has_message():
            self._held = output
            return
        self.flush()
        self._send(output)

    def flush(self) -> None:
        """Send what is held: whatever comes next is no step, or no answer follows."""
        held, self._held = self._held, None
        if held is not None:
            self._send(held)
