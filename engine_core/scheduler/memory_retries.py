"""Which requests restart after a step ran out of memory, with how large steps, and when do they give up?

A row that is taken back loses whatever no prefix cache keeps. If steps grew while it restarts, the first one
that is too large would throw it back again, and a prompt that takes longer than that would never finish.
So steps grow only while no row in them has anything to lose:

    a request          its successful steps      leaves by
    is taken back      let no step grow          a new token; its end; being taken back too often
    has a new token    let steps grow            -

Each failure without a new token in between halves that request's steps, down to one token. Even that is
retried: whoever took the memory may give it back. Attempts are counted, and after too many the request ends.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.running import RunningRows

# Attempts beyond the halvings that lead down to steps of one token.
SPARE_ATTEMPTS = 2


@dataclass(slots=True)
class _Restart:
    """Where a request stood when it was taken back, and how often that has happened without progress."""

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
        """Shrink the budget after a step of `num_tokens` failed; returns the requests out of attempts.

        Args:
            requests: the step's requests, already off their rows.
            num_tokens: tokens of the step.
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
        """Let steps grow unless these rows, of a step that fit into memory, have something to lose."""
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
            and self._running.known_tokens_of(request) == restart.num_known_tokens
        }
