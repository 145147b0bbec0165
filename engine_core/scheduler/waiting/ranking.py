"""Which key has the smallest value, if values change? A heap that skips outdated entries."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

K = TypeVar("K", int, str, bytes)
V = TypeVar("V", int, tuple[int, int])


class Ranking(Generic[K, V]):
    """Keys by value, smallest first; setting, dropping and looking cost O(log n), amortised.

    Outdated values stay in the heap until they surface or outnumber the keys, so its size is at most twice
    the number of keys plus a constant.
    """

    __slots__ = ("_heap", "_values")

    def __init__(self) -> None:
        self._values: dict[K, V] = {}
        self._heap: list[tuple[V, K]] = []

    def __len__(self) -> int:
        return len(self._values)

    def set(self, key: K, value: V | None) -> None:
        """Add a key, change its value, or remove it with None."""
        if value is None:
            self._values.pop(key, None)
            return
        if self._values.get(key) == value:
            return
        self._values[key] = value
        heapq.heappush(self._heap, (value, key))
        if len(self._heap) > 2 * len(self._values) + 64:
            self._heap = [(value, key) for key, value in self._values.items()]
            heapq.heapify(self._heap)

    def first(self) -> tuple[V, K] | None:
        """Return the smallest value and its key, None if there is none."""
        while self._heap:
            value, key = self._heap[0]
            if self._values.get(key) == value:
                return value, key
            heapq.heappop(self._heap)
        return None
