"""When the next request is sent: at the times of the trace, or some time after an earlier one has ended."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod

import numpy as np

from benchmarks.simulation.settings import Workload
from benchmarks.simulation.trace import FloatColumn, Trace


class Arrivals(ABC):
    """Hands out the requests 0, 1, 2, ... of a trace, each once."""

    @abstractmethod
    def next_s(self) -> float:
        """Return when the next request is sent; inf when none is, or not before another ends."""

    @abstractmethod
    def take(self) -> int:
        """Return the request that is sent at next_s(), which must be finite."""

    @abstractmethod
    def ended(self, count: int, now_s: float) -> None:
        """Hear that so many requests have ended."""


class OpenArrivals(Arrivals):
    """Requests come when the trace says, however the engine fares."""

    def __init__(self, arrival_s: FloatColumn) -> None:
        self._times: list[float] = [*arrival_s.tolist(), math.inf]
        self._next = 0

    def next_s(self) -> float:
        """Return the trace's time."""
        return self._times[self._next]

    def take(self) -> int:
        """Return the next index."""
        self._next += 1
        return self._next - 1

    def ended(self, count: int, now_s: float) -> None:
        """Open arrivals do not wait for anything."""


class ClosedArrivals(Arrivals):
    """A fixed number of clients; each sends its next request a pause after the end of its last one."""

    def __init__(self, num_requests: int, clients: int, pauses_s: FloatColumn) -> None:
        """Let all clients begin with a pause.

        Args:
            num_requests: of the trace.
            clients: at most so many requests are open at a time.
            pauses_s: [num_requests], the pause before each request.
        """
        self._num_requests = num_requests
        self._pauses_s = pauses_s
        self._num_promised = min(clients, num_requests)
        self._times: list[float] = pauses_s[: self._num_promised].tolist()
        heapq.heapify(self._times)
        self._next = 0

    def next_s(self) -> float:
        """Return the end of the shortest pause."""
        return self._times[0] if self._times else math.inf

    def take(self) -> int:
        """Return the next index."""
        heapq.heappop(self._times)
        self._next += 1
        return self._next - 1

    def ended(self, count: int, now_s: float) -> None:
        """Start the pause of each client whose request ended."""
        for _ in range(min(count, self._num_requests - self._num_promised)):
            heapq.heappush(self._times, now_s + float(self._pauses_s[self._num_promised]))
            self._num_promised += 1


def make_arrivals(workload: Workload, trace: Trace) -> Arrivals:
    """Return what the workload asks for; a recorded trace may be replayed by a closed loop too."""
    if workload.arrivals != "closed":
        return OpenArrivals(trace.arrival_s)
    rng = np.random.default_rng([workload.seed, 100])
    pauses_s = workload.think_s * rng.exponential(1.0, trace.num_requests)
    return ClosedArrivals(trace.num_requests, workload.clients, pauses_s)
