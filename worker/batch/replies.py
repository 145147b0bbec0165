"""When the reply to a step is sent: at once, except that replies to two short steps may be batched.

Each message wakes libzmq's thread and then the engine, which schedules, sends, and writes to its frontends:
more work than a short step. A reply is held back only if the next step has already arrived and computes as
many tokens of each row, that is, for about one short step and never during a prefill.
"""

from __future__ import annotations

from collections.abc import Callable

from splitserve.engine_core.config import SHORT_STEP_S
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput


class Replies:
    """Sends replies in the order of their steps, holding back at most one; single-threaded.

    Args:
        send: sends one reply.
        has_message: whether the next message from the engine has already arrived.
    """

    def __init__(self, send: Callable[[ModelRunnerOutput], None], has_message: Callable[[], bool]) -> None:
        self._send = send
        self._has_message = has_message
        self._held: ModelRunnerOutput | None = None
        self._num_tokens = b""

    def expect(self, step: SchedulerOutput) -> None:
        """Announce the next step; a held reply is sent first, unless the step is like the previous one."""
        if step.num_tokens != self._num_tokens or step.moves_to:
            self._num_tokens = step.num_tokens
            self.flush()

    def add(self, output: ModelRunnerOutput) -> None:
        """Send a reply now, or together with the next one."""
        if self._held is None and output.compute_s < SHORT_STEP_S and self._has_message():
            self._held = output
            return
        self.flush()
        self._send(output)

    def flush(self) -> None:
        """Send a held reply: the next message is not a step, or no further reply will follow."""
        held, self._held = self._held, None
        if held is not None:
            self._send(held)

    def drop(self) -> None:
        """Forget a held reply: nobody is there to take it."""
        self._held = None
