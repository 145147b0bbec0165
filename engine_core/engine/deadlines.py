"""Which requests have run out of time: in total or in the queue? And which waits are long enough to log?"""

from __future__ import annotations

from collections.abc import Iterator

from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.request import EndedRequest, Request
from splitserve.engine_core.scheduler.waiting.lazy_heap import LazyHeap


class Deadlines:
    """Up to three times per request in flight, in heaps; used by the engine's thread.

    Args:
        queue_timeout_s: queue timeout of a request that sets none; 0 = no limit.
        log_wait_s: wait after which a request is logged; 0 = never.
    """

    def __init__(self, queue_timeout_s: float, log_wait_s: float) -> None:
        self._queue_timeout_s = queue_timeout_s
        self._log_wait_s = log_wait_s
        self._ends: LazyHeap[float] = LazyHeap()
        self._queue_ends: LazyHeap[float] = LazyHeap()
        self._to_log: LazyHeap[float] = LazyHeap()

    def add(self, request: Request, queue_timeout_s: float) -> None:
        """Watch a new request.

        One that has begun, on an earlier engine or in an earlier step of a beam search, has no queue timeout.
        """
        if request.deadline_s < float("inf"):
            self._ends.push(request.deadline_s, request)
        queue_timeout_s = queue_timeout_s or self._queue_timeout_s
        if queue_timeout_s and not request.siblings.has_begun:
            self._queue_ends.push(request.arrival_s + queue_timeout_s, request)
        if self._log_wait_s:
            self._to_log.push(request.arrival_s + self._log_wait_s, request)

    def started(self, request: Request) -> None:
        """It has left the queue for the first time: its siblings have no queue timeout from now on."""
        if not request.siblings.has_begun:
            for sibling in request.siblings.waiting.values():
                self._queue_ends.remove(sibling)
        self._to_log.remove(request)

    def remove(self, request: Request) -> None:
        """It has ended."""
        self._ends.remove(request)
        self._queue_ends.remove(request)
        self._to_log.remove(request)

    def ended(self, now_s: float) -> Iterator[EndedRequest]:
        """Yield those to end now; each must be removed before the next is asked for."""
        while (entry := self._ends.peek()) is not None and entry[0] <= now_s:
            request = entry[1]
            message = f"the request did not finish within its {request.deadline_s - request.arrival_s:g} s"
            yield EndedRequest(request, FinishReason.ERROR, None, "timeout", message, 504)
        while (entry := self._queue_ends.peek()) is not None and entry[0] <= now_s:
            request = entry[1]
            message = f"the request waited in the queue for {entry[0] - request.arrival_s:g} s"
            yield EndedRequest(request, FinishReason.ERROR, None, "queue_timeout", message, 503)

    def long_waits(self, now_s: float) -> Iterator[Request]:
        """Yield those that have waited long enough to be logged, each once."""
        while (entry := self._to_log.peek()) is not None and entry[0] <= now_s:
            self._to_log.remove(entry[1])
            yield entry[1]

    @property
    def num_watched(self) -> int:
        """Entries in all heaps; none belongs to an ended request."""
        return len(self._ends) + len(self._queue_ends) + len(self._to_log)
