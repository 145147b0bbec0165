"""Whose request is next under the fair policy? The tenant's with the least service so far, by weight.

Two tenants that both always have requests waiting get tokens in proportion to their weights: their counters
(tenants.py) never differ by more than the longest prompt plus the output of a full batch,
over the smaller weight. A tenant that returns starts level with the least served of those waiting, so
nobody can save up service. Nobody starves: every admission moves its tenant back. One limitation: a
tenant's counter includes the output of its running requests only as far as they have got.

Within a tenant (priority, arrival) decides. Preempted requests come before all others, in order of arrival:
their tokens are paid for, and their clients have begun to read. A request counts once as open in its
tenant's slot while it waits, and once while it runs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping

from splitserve.engine_core.request import Request
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.waiting.lazy_heap import LazyHeap
from splitserve.engine_core.scheduler.waiting.queues import WaitingQueue
from splitserve.engine_core.scheduler.waiting.tenants import TenantCounters


class FairQueue(WaitingQueue):
    """One queue per tenant, and a heap of the waiting tenants by counter.

    Adding, removing and choosing cost O(log n). Counters only grow, so the heap's keys may be too small;
    a key is corrected when it surfaces, so settle() need not touch the heap.
    """

    def __init__(self, max_num_seqs: int, weights: Mapping[str, int]) -> None:
        self.counters = TenantCounters(max_num_seqs, weights)
        self._preempted: LazyHeap[tuple[int, int]] = LazyHeap()
        self._by_slot: dict[int, LazyHeap[tuple[int, int]]] = {}
        self._num_fresh = 0
        self._aside: list[Request] = []
        self._heap: list[tuple[int, int]] = []
        # Counter of the tenant admitted last: where a tenant starts that arrives while nobody waits.
        self._level = 0

    def __len__(self) -> int:
        return len(self._preempted) + self._num_fresh

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted
        for queue in self._by_slot.values():
            yield from queue

    def add(self, request: Request) -> None:
        """Queue it behind its tenant's requests of its priority."""
        slot = request.fair_slot = self.counters.open(request.tenant)
        queue = self._by_slot.get(slot)
        if queue is None:
            self._begin_to_wait(slot)
            queue = self._by_slot[slot] = LazyHeap()
        queue.push((request.priority, request.arrival), request)
        self._num_fresh += 1

    def requeue(self, request: Request) -> None:
        """Put it ahead of all requests that never ran."""
        self.counters.reopen(request.fair_slot)
        self._preempted.push(request.sort_key, request)

    def head(self) -> Request | None:
        """Return the oldest preempted request, else the best one of the least served tenant."""
        entry = self._preempted.peek()
        if entry is None:
            slot = self._least_served()
            entry = None if slot is None else self._by_slot[slot].peek()
        return None if entry is None else entry[1]

    def remove(self, request: Request) -> None:
        """Take it out."""
        self.counters.close(request.fair_slot)
        if request.was_started:
            self._preempted.remove(request)
            return
        queue = self._by_slot[request.fair_slot]
        queue.remove(request)
        self._num_fresh -= 1
        if not len(queue):
            del self._by_slot[request.fair_slot]

    def set_aside(self, request: Request) -> None:
        """Let its tenant's next request pass, or other tenants if there is none; no counter changes."""
        self._aside.append(request)
        if request.was_started:
            self._preempted.pop()
            return
        queue = self._by_slot[request.fair_slot]
        queue.pop()
        self._num_fresh -= 1
        if not len(queue):
            # Its tenant is the least served, hence at the top of the heap.
            del self._by_slot[request.fair_slot]
            heapq.heappop(self._heap)

    def restore(self) -> None:
        """Queue them again, with their tenants' counters as they were."""
        for request in self._aside:
            if request.was_started:
                self._preempted.push(request.sort_key, request)
                continue
            slot = request.fair_slot
            if slot not in self._by_slot:
                self._by_slot[slot] = LazyHeap()
                heapq.heappush(self._heap, (self.counters.virtual(slot), slot))
            self._by_slot[slot].push((request.priority, request.arrival), request)
            self._num_fresh += 1
        self._aside.clear()

    def admitted(self, request: Request, row: int, num_cached_tokens: int) -> None:
        """Charge its prompt; called before was_started is set."""
        if not request.was_started:
            self._level = max(self._level, self.counters.virtual(request.fair_slot))
        self.counters.admitted(request, row, num_cached_tokens)

    def released(self, row: int, num_computed_tokens: int) -> None:
        """Charge what the row has computed since settle()."""
        self.counters.released(row, num_computed_tokens)

    def settle(self, running: RunningRows) -> None:
        """Bring the counters up to date before heads are chosen."""
        self.counters.settle(running)

    def position(self, request: Request) -> int:
        """Count the requests ahead of it in its tenant's queue, or among the preempted ones; O(n)."""
        if request.was_started:
            return sum(1 for other in self._preempted if other.sort_key < request.sort_key)
        key = (request.priority, request.arrival)
        mates = self._by_slot[request.fair_slot]
        return sum(1 for other in mates if (other.priority, other.arrival) < key)

    def num_held_back(self) -> int:
        """Count the requests of tenants that are not the least served."""
        slot = self._least_served()
        return 0 if slot is None else self._num_fresh - len(self._by_slot[slot])

    def is_held_back(self, request: Request) -> bool:
        """Whether its tenant is not the least served."""
        return not request.was_started and request.fair_slot != self._least_served()

    @property
    def num_tenants(self) -> int:
        """Tenants with a counter of their own."""
        return len(self.counters)

    def check_integrity(self, running: RunningRows) -> None:
        """Raise IntegrityError unless the tenants' counts match the requests."""
        num_open = Counter(request.fair_slot for request in self)
        num_open.update(running.request_at(row).fair_slot for row in running.order.tolist())
        self.counters.check_integrity(num_open)

    def _begin_to_wait(self, slot: int) -> None:
        """Add a tenant to the heap, level with the others; entries left from earlier waits are harmless."""
        least = self._least_served()
        self.counters.lift(slot, self._level if least is None else self.counters.virtual(least))
        if len(self._heap) > 2 * len(self._by_slot) + 64:
            self._heap = [(self.counters.virtual(other), other) for other in self._by_slot]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (self.counters.virtual(slot), slot))

    def _least_served(self) -> int | None:
        """Return the slot with the lowest counter among those with requests that never ran."""
        while self._heap:
            key, slot = self._heap[0]
            virtual = self.counters.virtual(slot)
            if slot not in self._by_slot:
                heapq.heappop(self._heap)
            elif key < virtual:
                heapq.heapreplace(self._heap, (virtual, slot))
            else:
                return slot
        return None
