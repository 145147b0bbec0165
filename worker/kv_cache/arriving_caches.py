"""The KV caches of all layers, each handed to a step once the blocks that move in it have arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from splitserve.worker.kv_cache.layout import KVCache


class Arrival(NamedTuple):
    """Moves of some layers that run beside the step.

    Attributes:
        first_layer: of those layers.
        wait: lets what the step enqueues from then on wait for them.
    """

    first_layer: int
    wait: Callable[[], None]


class ArrivingCaches:
    """Hands a step its caches layer by layer, as a model's layers ask for them; one thread.

    So the first layers compute while blocks of the last ones are still on their way. Before a step ends it
    has waited for all of its moves: nothing is left to the next one, nor to who frees the caches.

    Args:
        caches: one per layer.
    """

    def __init__(self, caches: list[KVCache]) -> None:
        self._caches = caches
        self._arrivals: deque[Arrival] = deque()

    def expect(self, arrivals: Iterable[Arrival]) -> None:
        """Hear of a step's moves, in the order of the layers; all of the step before have been waited for."""
        self._arrivals.extend(arrivals)

    def __iter__(self) -> Iterator[KVCache]:
        """Each layer's cache; what is enqueued once it is handed out finds the moves of that layer made."""
        return self._as_they_arrive() if self._arrivals else iter(self._caches)

    def wait(self) -> None:
        """Let what is enqueued from here on wait for the moves of all layers."""
        self._wait_for(len(self._caches))

    def _as_they_arrive(self) -> Iterator[KVCache]:
        for layer, cache in enumerate(self._caches):
            self._wait_for(layer)
            yield cache

    def _wait_for(self, layer: int) -> None:
        while self._arrivals and self._arrivals[0].first_layer <= layer:
            self._arrivals.popleft().wait()
