"""Requests that wait, as admission sees them, without an engine."""

from __future__ import annotations

from itertools import count

from splitserve.engine_core.request import Request, Siblings
from splitserve.engine_core.scheduler.waiting.queue_admission import Displaced, QueueAdmission
from tests.engine_core.requests import make_request

_arrivals = count()


class Sized:
    """A column of token ids that only knows its length, so that a test may have a billion of them."""

    def __init__(self, num_tokens: int) -> None:
        self._num_bytes = 4 * num_tokens

    def __len__(self) -> int:
        return self._num_bytes


def newcomer(
    *num_tokens: int, tenant: str = "", frontend: bytes = b"", priority: int = 0, has_begun: bool = False
) -> Siblings:
    """A request of one sequence per number of tokens."""
    siblings = Siblings(tenant, frontend, priority, next(_arrivals), has_begun)
    for count_ in num_tokens:
        request = make_request(arrival=next(_arrivals))
        request.token_ids = Sized(count_)  # type: ignore[assignment]
        request.num_prompt_tokens = count_
        request.siblings = siblings
        siblings.add(request)
    return siblings


class Waiting:
    """Does what an engine does around its admission; everything is checked after each event."""

    def __init__(self, admission: QueueAdmission) -> None:
        self.admission = admission

    def add(self, siblings: Siblings, now_s: float = 0.0, num_free_rows: int = 0) -> list[Request]:
        """Add a request that must find room; returns its sequences."""
        self.displacing(siblings, now_s, num_free_rows)
        return list(siblings.waiting.values())

    def displacing(self, siblings: Siblings, now_s: float = 0.0, num_free_rows: int = 0) -> list[Displaced]:
        """Add a request that must find room; returns who has left for it."""
        displaced = self.admission.make_room(siblings, num_free_rows, now_s)
        for each in displaced:
            self.give_up(list(each.siblings.waiting.values()), now_s)
        self.admission.added(siblings, now_s)
        self.admission.check_integrity()
        return displaced

    def start(self, requests: list[Request], now_s: float = 0.0) -> None:
        """Let sequences leave the queue for their rows."""
        for request in requests:
            self.admission.started(request, now_s)
            self.admission.check_integrity()

    def give_up(self, requests: list[Request], now_s: float = 0.0) -> None:
        """Let sequences end that never ran."""
        for request in requests:
            self.admission.given_up(request, now_s)
            self.admission.check_integrity()
