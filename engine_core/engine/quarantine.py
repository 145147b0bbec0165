"""Which requests do workers die of? Those in the steps in flight are watched, tried apart, or ended.

    worker lost with these in its steps     then
    none that an earlier worker died with   all run again at once
    one                                     it ends with "request_unsafe"; the others run again at once
    several                                 these run again in MAX_SUSPECTS parts, one part at a time

The sequences of one client's request (n, or several prompts) are one suspect: they are tried together, and
end together. A request is cleared when each of its sequences that was there has a new token, or has ended,
since the loss. When all requests of a part are cleared, the next part has its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Set

from splitserve.engine_core.request import Request, RequestState, Siblings
from splitserve.engine_core.suspects import MAX_SUSPECTS, Suspects


class Quarantine:
    """The requests that workers were lost with, until they are cleared; used by the engine's thread.

    Empty, and free of charge, as long as no worker is lost.

    Args:
        num_known_tokens: tells how many tokens of a sequence are known.
    """

    def __init__(self, num_known_tokens: Callable[[Request], int]) -> None:
        self._num_known_tokens = num_known_tokens
        self._suspects: Suspects[Siblings] = Suspects()
        # Of every request that is not cleared, its sequences at the last loss with their known tokens.
        self._known_at_loss: dict[Siblings, dict[Request, int]] = {}
        # Who is tried next, several at a time, and who has to wait for it.
        self._turns: deque[list[Siblings]] = deque()
        self._on_trial: list[Siblings] = []
        self._held: set[Siblings] = set()

    def __len__(self) -> int:
        """Requests that are not cleared."""
        return len(self._known_at_loss)

    @property
    def held(self) -> Set[Siblings]:
        """Requests none of whose sequences may be admitted yet; the same set always."""
        return self._held

    def worker_lost(self, present: Collection[Request]) -> list[Siblings]:
        """Judge the loss of the workers.

        Args:
            present: sequences in the steps that were in flight.

        Returns:
            Requests that must not run again.
        """
        self.look()
        known: dict[Siblings, dict[Request, int]] = {}
        for request in present:
            known.setdefault(request.siblings, {})[request] = self._num_known_tokens(request)
        common = [siblings for siblings in known if siblings in self._suspects]
        unsafe = self._suspects.died(known).unsafe
        self._known_at_loss |= known
        self._forget(unsafe)
        if len(common) > 1:
            self._try_in_parts(common)
        self._next_turn()
        return unsafe

    def look(self) -> None:
        """Clear those that got further than they had, or have ended."""
        self._forget([siblings for siblings in self._known_at_loss if self._has_got_on(siblings)])
        self._next_turn()

    def _has_got_on(self, siblings: Siblings) -> bool:
        return all(
            request.state is RequestState.ENDED or self._num_known_tokens(request) > num_known
            for request, num_known in self._known_at_loss[siblings].items()
        )

    def _forget(self, cleared: Iterable[Siblings]) -> None:
        for siblings in cleared:
            self._suspects.forget([siblings])
            self._known_at_loss.pop(siblings, None)

    def _try_in_parts(self, suspects: list[Siblings]) -> None:
        """Let these run in parts, before those that have been waiting for their turn."""
        tried = set(suspects)
        part_len = -(-len(suspects) // MAX_SUSPECTS)
        parts = [suspects[i : i + part_len] for i in range(0, len(suspects), part_len)]
        others = ([each for each in turn if each not in tried] for turn in (self._on_trial, *self._turns))
        self._turns = deque([*parts, *(turn for turn in others if turn)])
        self._on_trial = []
        self._held.update(*self._turns)

    def _next_turn(self) -> None:
        """Let the next be admitted once those on trial are cleared."""
        self._on_trial = [each for each in self._on_trial if each in self._known_at_loss]
        while not self._on_trial and self._turns:
            turn = self._turns.popleft()
            self._held.difference_update(turn)
            self._on_trial = [each for each in turn if each in self._known_at_loss]
