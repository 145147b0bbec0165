"""Which requests do workers die of? Those in the steps in flight are watched, tried apart, or ended.

    worker lost with these in its steps     then
    none that an earlier worker died with   all run again at once
    one                                     it ends with "request_unsafe"; the others run again at once
    several                                 these run again in MAX_SUSPECTS parts, one part at a time

A request that has a new token, or has ended, since the loss is cleared. When all requests of a part are
cleared, the next part has its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Set

from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.suspects import MAX_SUSPECTS, Suspects


class Quarantine:
    """The requests that workers were lost with, until they are cleared; used by the engine's thread.

    Empty, and free of charge, as long as no worker is lost.

    Args:
        num_known_tokens: tells how many tokens of a request are known.
    """

    def __init__(self, num_known_tokens: Callable[[Request], int]) -> None:
        self._num_known_tokens = num_known_tokens
        self._suspects: Suspects[Request] = Suspects()
        # Known tokens at the last loss, of every request that is not cleared.
        self._known_at_loss: dict[Request, int] = {}
        # Who is tried next, several at a time, and who has to wait for it.
        self._turns: deque[list[Request]] = deque()
        self._on_trial: list[Request] = []
        self._held: set[Request] = set()

    def __len__(self) -> int:
        """Requests that are not cleared."""
        return len(self._known_at_loss)

    @property
    def held(self) -> Set[Request]:
        """Waiting requests that must not be admitted yet; the same set always."""
        return self._held

    def worker_lost(self, present: Collection[Request]) -> list[Request]:
        """Judge the loss of the workers.

        Args:
            present: requests in the steps that were in flight.

        Returns:
            Requests that must not run again.
        """
        self.look()
        common = [request for request in present if request in self._suspects]
        unsafe = self._suspects.died(present).unsafe
        self._forget(unsafe)
        for request in present:
            if request not in unsafe:
                self._known_at_loss[request] = self._num_known_tokens(request)
        if len(common) > 1:
            self._try_in_parts(common)
        self._next_turn()
        return unsafe

    def look(self) -> None:
        """Clear those that got further than they had, or have ended."""
        self._forget(
            [
                request
                for request, num_known in self._known_at_loss.items()
                if request.state is RequestState.ENDED or self._num_known_tokens(request) > num_known
            ]
        )
        self._next_turn()

    def _forget(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._suspects.forget([request])
            self._known_at_loss.pop(request, None)

    def _try_in_parts(self, requests: list[Request]) -> None:
        """Let these run in parts, before those that have been waiting for their turn."""
        tried = set(requests)
        part_len = -(-len(requests) // MAX_SUSPECTS)
        parts = [requests[i : i + part_len] for i in range(0, len(requests), part_len)]
        others = ([each for each in turn if each not in tried] for turn in (self._on_trial, *self._turns))
        self._turns = deque([*parts, *(turn for turn in others if turn)])
        self._on_trial = []
        self._held.update(*self._turns)

    def _next_turn(self) -> None:
        """Let the next be admitted once those on trial are cleared."""
        self._on_trial = [request for request in self._on_trial if request in self._known_at_loss]
        while not self._on_trial and self._turns:
            turn = self._turns.popleft()
            self._held.difference_update(turn)
            self._on_trial = [request for request in turn if request in self._known_at_loss]
