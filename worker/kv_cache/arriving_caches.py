"""The KV caches of all layers, each handed to a step once the blocks being moved in have arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from splitserve.worker.kv_cache.layout import KVCache


class Arrival(NamedTuple):
    """Moves of some layers of blocks that run concurrently with the step.

    Attributes:
        first_place: of those layers, as KVCache has it.
        wait: makes work that the step enqueues later wait for them.
    """

    first_place: int
    wait: Callable[[], None]


class ArrivingCaches:
    """Hands a step its caches layer by layer, as the model's layers ask for them; single-threaded.

    So the first layers compute while blocks of the last ones are still in transit. A step waits for all of
    its moves before it ends, so none are left when the next one begins or the caches are freed.

    Args:
        caches: one per layer.
    """

    def __init__(self, caches: list[KVCache]) -> None:
        self._caches = caches
        self._arrivals: deque[Arrival] = deque()

    def expect(self, arrivals: Iterable[Arrival]) -> None:
        """Set a step's moves, in order of places; those of the previous step must have been waited for."""
        self._arrivals.extend(arrivals)

    def __iter__(self) -> Iterator[KVCache]:
        """Yield each layer's cache; work enqueued after that sees the moves of that layer done."""
        return self._as_they_arrive() if self._arrivals else iter(self._caches)

    def wait(self) -> None:
        """Make work enqueued from here on wait for the moves of all layers."""
        self._wait_for(len(self._caches))

    def _as_they_arrive(self) -> Iterator[KVCache]:
        for cache in self._caches:
            self._wait_for(cache.place)
            yield cache

    def _wait_for(self, place: int) -> None:
        while self._arrivals and self._arrivals[0].first_place <= place:
            self._arrivals.popleft().wait()
