"""In which order are waiting requests admitted? First come, first served, or by priority."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile

from splitserve.engine_core.request import Request
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.waiting.lazy_heap import LazyHeap


class WaitingQueue(ABC):
    """Waiting requests; the scheduler admits from the head only.

    While planning a step it may set a head aside and look at the next one. Requests set aside still wait;
    until restore() only head(), remove(), admitted() and set_aside() are called.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """Iterate in no particular order."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Queue a new request."""

    @abstractmethod
    def requeue(self, request: Request) -> None:
        """Put a preempted request back, ahead of everything of its rank that arrived later."""

    @abstractmethod
    def head(self) -> Request | None:
        """Return the next request to admit, None when nothing waits."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Take a queued request out: admitted, aborted or timed out."""

    @abstractmethod
    def set_aside(self, request: Request) -> None:
        """Let head() skip the current head until restore()."""

    @abstractmethod
    def restore(self) -> None:
        """Put what was set aside back in its place."""

    # The rest is for policies that count service; the others ignore it.

    def admitted(self, request: Request, row: int, num_cached_tokens: int) -> None:
        """A removed request gets a row; its was_started still says whether it had one before."""
        return

    def released(self, row: int, num_computed_tokens: int) -> None:
        """A row is freed."""
        return

    def settle(self, running: RunningRows) -> None:
        """Bring the counts up to date; called before heads are chosen."""
        return

    def position(self, request: Request) -> int:
        """Count the waiting requests ahead of a waiting one; O(n), for explain only."""
        return sum(1 for other in self if other.sort_key < request.sort_key)

    def num_held_back(self) -> int:
        """Count the waiting requests that wait for their tenant's share rather than for resources."""
        return 0

    def is_held_back(self, request: Request) -> bool:
        """Whether a waiting request waits for its tenant's share."""
        return False

    @property
    def num_tenants(self) -> int:
        """Tenants whose service is counted."""
        return 0

    def check_integrity(self, running: RunningRows) -> None:
        """Raise IntegrityError unless the counts match the requests."""
        return


class FcfsQueue(WaitingQueue):
    """First come, first served; priorities are ignored."""

    def __init__(self) -> None:
        # Aborts take requests out of the middle, which a deque does in O(n).
        self._requests: OrderedDict[int, Request] = OrderedDict()
        self._aside: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        """Append at the end."""
        self._requests[request.arrival] = request

    def requeue(self, request: Request) -> None:
        """Put it in its place near the front: only requests it overtook while set aside are older."""
        older = list(takewhile(lambda arrival: arrival < request.arrival, self._requests))
        self._requests[request.arrival] = request
        self._to_front([*older, request.arrival])

    def head(self) -> Request | None:
        """Return the earliest."""
        return next(iter(self._requests.values()), None)

    def remove(self, request: Request) -> None:
        """Take it out; O(1)."""
        del self._requests[request.arrival]

    def set_aside(self, request: Request) -> None:
        """Take the first one out for a while."""
        del self._requests[request.arrival]
        self._aside.append(request)

    def restore(self) -> None:
        """Put them back at the front; they are older than everything that is left."""
        self._requests.update((request.arrival, request) for request in self._aside)
        self._to_front([request.arrival for request in self._aside])
        self._aside.clear()

    def _to_front(self, arrivals: list[int]) -> None:
        for arrival in reversed(arrivals):
            self._requests.move_to_end(arrival, last=False)


class PriorityQueue(WaitingQueue):
    """Lower priority numbers first, ties by arrival; a steady stream of lower numbers can hold others off."""

    def __init__(self) -> None:
        self._heap: LazyHeap[tuple[int, int]] = LazyHeap()
        self._aside: list[Request] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._heap)

    def add(self, request: Request) -> None:
        """Insert by (priority, arrival)."""
        self._heap.push(request.sort_key, request)

    def requeue(self, request: Request) -> None:
        """Insert by (priority, arrival): it is older than all later arrivals of its priority."""
        self._heap.push(request.sort_key, request)

    def head(self) -> Request | None:
        """Return the best (priority, arrival)."""
        entry = self._heap.peek()
        return None if entry is None else entry[1]

    def remove(self, request: Request) -> None:
        """Take it out."""
        self._heap.remove(request)

    def set_aside(self, request: Request) -> None:
        """Take the smallest entry out for a while."""
        self._heap.pop()
        self._aside.append(request)

    def restore(self) -> None:
        """Insert them again."""
        for request in self._aside:
            self._heap.push(request.sort_key, request)
        self._aside.clear()
