"""Which request is first, if any may be removed? A heap: removal marks an entry, popping skips it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

from splitserve.engine_core.request import Request

Key = TypeVar("Key", int, float, tuple[int, int])


class LazyHeap(Generic[Key]):
    """Requests by key, smallest first; ties go by arrival.

    Removed entries stay in the heap until they surface or outnumber the live ones, so its size is at most
    twice the live count plus a constant.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int]] = []
        self._live: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        """Iterate in no particular order."""
        return iter(self._live.values())

    def push(self, key: Key, request: Request) -> None:
        """Add a request that is not in the heap.

        Its older entry, if one is still buried here, carries the same key, so either may surface first.
        """
        self._live[request.arrival] = request
        heapq.heappush(self._heap, (key, request.arrival))

    def peek(self) -> tuple[Key, Request] | None:
        """Return the smallest live entry, None when there is none."""
        while self._heap:
            key, arrival = self._heap[0]
            request = self._live.get(arrival)
            if request is not None:
                return key, request
            heapq.heappop(self._heap)
        return None

    def pop(self) -> tuple[Key, Request]:
        """Take the smallest live entry out; there must be one."""
        entry = self.peek()
        assert entry is not None, "nothing to pop"
        heapq.heappop(self._heap)
        del self._live[entry[1].arrival]
        return entry

    def remove(self, request: Request) -> None:
        """Take a request out; O(1), amortised O(log n). A request that is not here is ignored."""
        if self._live.pop(request.arrival, None) is None:
            return
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)
