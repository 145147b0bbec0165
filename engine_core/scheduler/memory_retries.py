"""Which requests start again after a step without memory, how large steps may be then, and when it is enough.

A row that is taken back loses what no prefix cache keeps. If steps grew while it starts again, the first one
that is too large again would throw it back again, and a prompt that takes longer than that would never end.
So steps grow only beside rows that have nothing to lose:

    a request          its steps that go well    leaves by
    is taken back      let no step grow          a new token; its end; being taken back too often
    has a new token    let steps grow            -

Each failure without a new token in between halves the steps of that request, down to one token. That is tried
again: whoever takes the memory may give it back. Attempts are counted, and after too many the request ends.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.running import RunningRows

# Beyond the halvings that lead to steps of one token.
SPARE_ATTEMPTS = 2


@dataclass(slots=True)
class _Restart:
    """Where a request stood when it was taken back, and how often it was without getting further."""

    num_known_tokens: int
    num_attempts: int


class MemoryRetries:
    """The requests that were taken back and have no new token since; used by the engine's thread.

    Attributes:
        max_attempts: times a request is taken back without a new token before it ends.
    """

    def __init__(self, budget: StepBudget, running: RunningRows) -> None:
        self._budget = budget
        self._running = running
        self._restarts: dict[Request, _Restart] = {}
        self.max_attempts = budget.max_num_tokens.bit_length() + SPARE_ATTEMPTS

    def take_back(self, requests: Sequence[Request], num_tokens: int) -> list[Request]:
        """Plan less after a step of so many tokens has failed; returns the requests that have tried enough.

        Args:
            requests: its requests, off their rows by now.
            num_tokens: of the step.
        """
        self._budget.shrink(num_tokens)
        self._forget()
        enough = []
        for request in requests:
            restart = self._restarts.setdefault(request, _Restart(request.num_stored_tokens, 0))
            restart.num_attempts += 1
            if restart.num_attempts >= self.max_attempts:
                del self._restarts[request]
                enough.append(request)
        return enough

    def step_went_well(self, rows: Container[int]) -> None:
        """Let steps grow unless these rows, of a step that had room, have something to lose."""
        if self._restarts:
            self._forget()
            if any(request.row in rows for request in self._restarts):
                return
        self._budget.grow()

    def _forget(self) -> None:
        """Forget those that have ended, or have a new token."""
        self._restarts = {
            request: restart
            for request, restart in self._restarts.items()
            if request.state is not RequestState.ENDED
            and self._num_known_tokens(request) == restart.num_known_tokens
        }

    def _num_known_tokens(self, request: Request) -> int:
        if request.row < 0:
            return request.num_stored_tokens
        return int(self._running.num_known_tokens[request.row])
